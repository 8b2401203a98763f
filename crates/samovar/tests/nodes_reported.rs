//! The alerts for nodes fire and stay silent as their tests expect.

use std::path::Path;
use std::process::Command;

use testkit::process::output;

#[test]
fn alerts_pass_their_tests() {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rig/prometheus");
    for (action, file) in [("check", "nodes.yml"), ("test", "nodes.test.yml")] {
        let mut promtool = Command::new("promtool");
        output(promtool.args([action, "rules"]).arg(rules.join(file)));
    }
}
