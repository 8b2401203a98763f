//! The operator learns which right is missing, by a request that needs it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support_canned;
mod support_engine;

use std::ops::ControlFlow;

use samovar_bucket::{Bucket, CredentialSource, Outcome, Right, RightFinding, Settings};
use support_canned::{Asked, Canned, Reply};
use support_engine::Engine;

#[track_caller]
fn of(findings: &[RightFinding], right: Right) -> &Outcome {
    let finding = findings.iter().find(|finding| finding.right == right);
    &finding.unwrap().outcome
}

#[test]
fn all_rights_are_there_and_nothing_is_left_behind() {
    let Some(engine) = Engine::start() else {
        return;
    };
    let bucket = engine.bucket("some/prefix");
    let findings = bucket.try_rights();
    assert_eq!(findings.len(), 10);
    for finding in &findings {
        let is_good = match &finding.outcome {
            Outcome::Good => true,
            // Garage ignores If-None-Match.
            Outcome::Remark(_) => finding.right == Right::Conditional,
            _ => false,
        };
        assert!(is_good, "{finding:?}");
    }
    let mut count = 0;
    let listed = bucket.list("", &mut |_| {
        count += 1;
        ControlFlow::Continue(())
    });
    listed.unwrap();
    assert_eq!(count, 0);
}

/// Returns what is found at a server that answers as the test says.
fn at(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Vec<RightFinding> {
    let server = Canned::start(answer);
    let url = format!("s3://cache/p?endpoint={}", server.url());
    let mut settings = Settings::parse(&url).unwrap();
    settings.credentials = CredentialSource::Anonymous;
    Bucket::open(&settings).unwrap().try_rights()
}

#[test]
fn a_missing_right_is_named() {
    let findings = at(|asked| match asked.method.as_str() {
        "PUT" => Reply::new(200, ""),
        _ => Reply::error(403, "AccessDenied"),
    });
    assert!(matches!(of(&findings, Right::Put), Outcome::Good));
    for right in [
        Right::Get,
        Right::Head,
        Right::List,
        Right::Multipart,
        Right::Delete,
    ] {
        match of(&findings, right) {
            Outcome::Bad(error) => assert!(error.is_denied(), "{error}"),
            other => assert!(matches!(other, Outcome::Bad(_)), "{right:?}: {other:?}"),
        }
    }
    let Outcome::Remark(text) = of(&findings, Right::Lifecycle) else {
        return assert!(findings.is_empty(), "{findings:?}");
    };
    assert!(text.contains("GetLifecycleConfiguration"));

    // Without an object, reading cannot be tried.
    let findings = at(|_| Reply::error(403, "AccessDenied"));
    assert!(matches!(of(&findings, Right::Put), Outcome::Bad(_)));
    assert_eq!(findings.len(), 2);
}

#[test]
fn rules_that_delete_our_objects_are_named() {
    let findings = at(|asked| match asked.target.contains("lifecycle=") {
        true => Reply::new(
            200,
            "<LifecycleConfiguration><Rule><ID>tidy</ID><Filter><Prefix>p/</Prefix></Filter>\
             <Status>Enabled</Status><Expiration><Days>9</Days></Expiration></Rule>\
             </LifecycleConfiguration>",
        ),
        false => Reply::error(403, "AccessDenied"),
    });
    let Outcome::Remark(text) = of(&findings, Right::Lifecycle) else {
        return assert!(findings.is_empty(), "{findings:?}");
    };
    assert!(text.contains("tidy") && text.contains("\"p/\""), "{text}");
}
