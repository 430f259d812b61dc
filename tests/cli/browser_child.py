"""A browser for tests, as BROWSER names one: goes to an address and wherever it is sent from there."""

import sys
import urllib.request

urllib.request.urlopen(sys.argv[1], timeout=20).read()
