"""Clones, shallow clones and fetches with libgit2 through pygit2: `pygit2_client.py clone|shallow|fetch URL FOLDER`."""
import sys

import pygit2

verb, url, folder = sys.argv[1:]
if verb == "clone":
    pygit2.clone_repository(url, folder, bare=True)
elif verb == "shallow":
    pygit2.clone_repository(url, folder, bare=True, depth=1)
elif verb == "fetch":
    pygit2.Repository(folder).remotes["origin"].fetch()
else:
    sys.exit("no such verb")
