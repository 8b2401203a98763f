//! `test-s3`: the tests of `samovar-bucket` against another S3 engine than s3s-fs.

use std::process::Command;

use anyhow::{Result, bail};

use crate::command::{progress, repository, run};
use crate::setup::{install_crate, install_seaweedfs};

/// Module and version of versitygw.
const VERSITYGW: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";

/// Installs the engine, unless it is there already, and runs the tests.
pub(crate) fn test(server: &str) -> Result<()> {
    match server {
        "s3s-fs" => install_crate("s3s-fs", "0.14.1", &["--features", "binary"])?,
        "versitygw" => install_versitygw()?,
        "seaweedfs" => install_seaweedfs(),
        "garage" => install_crate("garage", "2.5.0", &[])?,
        _ => bail!("no such engine: {server}; there are s3s-fs, versitygw, seaweedfs and garage"),
    }
    let mut tests = Command::new("cargo");
    tests.args(["test", "--package", "samovar-bucket"]);
    tests.args([
        "--test", "objects", "--test", "faults", "--test", "rights", "--test", "tls",
    ]);
    run(tests.env("SAMOVAR_TEST_S3", server))
}

fn install_versitygw() -> Result<()> {
    let folder = repository().join(".samovar/tools/bin");
    if folder.join("versitygw").exists() {
        return Ok(());
    }
    progress("building versitygw (three minutes, only once)");
    let mut install = Command::new("go");
    install.args(["install", VERSITYGW]);
    run(install.env("GOBIN", folder))
}
