"""Small things that every floor may use and that know none of them. One topic a file; nothing here knows nanobot."""
