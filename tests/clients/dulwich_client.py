"""Clones, shallow clones and fetches with dulwich: `dulwich_client.py clone|shallow|fetch URL FOLDER`."""
import sys

from dulwich import porcelain

verb, url, folder = sys.argv[1:]
if verb == "clone":
    porcelain.clone(url, folder, bare=True, errstream=open("/dev/null", "wb"))
elif verb == "shallow":
    porcelain.clone(url, folder, bare=True, depth=1, errstream=open("/dev/null", "wb"))
elif verb == "fetch":
    porcelain.fetch(folder, url, errstream=open("/dev/null", "wb"))
else:
    sys.exit("no such verb")
