// Clones, shallow clones and fetches with isomorphic-git: `isomorphic_client.mjs clone|shallow|fetch URL FOLDER`.
import fs from "node:fs";
import git from "isomorphic-git";
import http from "isomorphic-git/http/node";

const [verb, url, dir] = process.argv.slice(2);
const common = { fs, http, dir, url, noCheckout: true };
if (verb === "clone") await git.clone({ ...common, singleBranch: false });
else if (verb === "shallow") await git.clone({ ...common, depth: 1, singleBranch: true });
else if (verb === "fetch") await git.fetch({ fs, http, dir, url });
else throw new Error("no such verb");
