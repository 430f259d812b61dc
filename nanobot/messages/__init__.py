"""Chat messages: types, repair of histories, the text shown to people, token counts. Imports only utils."""
