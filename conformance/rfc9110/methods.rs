//! Methods: section 9, and responses to methods that are not allowed.

use super::{answer, is_own};

#[test]
fn get_and_head_are_there() {
    // RFC 9110, 9.1: "All general-purpose servers MUST support the methods GET and HEAD."
    for method in ["GET", "HEAD"] {
        assert_eq!(answer(method, "/", "").status, 200, "{method}");
    }
}

#[test]
fn what_is_allowed_instead() {
    // RFC 9110, 10.2.1: "An origin server MUST generate an Allow header field in a 405 (Method Not
    // Allowed) response"
    // RFC 9110, 15.5.6: "The origin server MUST generate an Allow header field in a 405 response
    // containing a list of the target resource's currently supported methods."
    let targets = if is_own() {
        &["/", "/file", "/routed"][..]
    } else {
        &["/"]
    };
    for target in targets {
        for method in ["PUT", "DELETE", "PATCH", "OPTIONS", "UNHEARDOF"] {
            let given = answer(method, target, "");
            let allowed = given.header("allow").unwrap_or_default();
            assert_eq!(
                given.status == 405,
                !allowed.is_empty(),
                "{method} {target}"
            );
            assert!(
                !allowed
                    .split(", ")
                    .any(|name| name.eq_ignore_ascii_case(method)),
                "{allowed}"
            );
        }
    }
}
