//! The shared conformance suite, where it is at hand: 283 requests answered by stock git and by the server.
//!
//! `PACKRING_DIFFTEST` names its script; without it, the file beside this checkout is looked for.

mod support;

use std::{path::PathBuf, process::Command};

use support::Server;

#[test]
fn every_case_of_the_conformance_suite_is_the_same() {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/difftest/difftest.py");
    let script = std::env::var_os("PACKRING_DIFFTEST").map_or(beside, PathBuf::from);
    let python = Command::new("python3").arg("--version").output();
    if !script.exists() || python.is_err() {
        eprintln!("SKIPPED: the conformance suite is not at {} (or python3 is missing)", script.display());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("fixtures");
    let run = |arguments: &[&str]| {
        let output = Command::new("python3").arg(&script).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
        said
    };
    run(&["mkfix", root.to_str().unwrap()]);
    let server = Server::start_with(&root, &["--defaults", "git"]);
    let url = format!("http://127.0.0.1:{}", server.port);
    let said = run(&["run", root.to_str().unwrap(), &url]);
    let wrong: Vec<&str> = said.lines().filter(|line| line.starts_with("DIFF") || line.starts_with("extra")).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(said.contains("TOTAL 283"), "{said}");
    for seed in ["101", "202", "303"] {
        let said = run(&["fuzz", root.to_str().unwrap(), &url, "400", seed]);
        let total = said.lines().find(|line| line.starts_with("FUZZ")).unwrap_or_default();
        assert!(total.contains("same/ok") && !total.contains("DIFF") && !total.contains("5xx"), "{said}");
    }
}
