//! Browsers show as text, and never run, what builds have printed and what clients have sent.

mod support;
mod support_uploads;

use support::{sample, sample_store};
use support_uploads::{MadePath, Site};
use testkit::http1::Response;

#[track_caller]
fn assert_unsniffed(response: &Response, what: &str) {
    let media_type = response.header("content-type");
    let is_text = media_type.is_some_and(|found| found.starts_with("text/"));
    assert!(is_text, "{what}: {media_type:?}");
    let options = response.header("x-content-type-options");
    assert_eq!(options, Some("nosniff"), "{what}: {}", response.text());
}

#[test]
fn logs_and_answers_about_uploads_are_not_sniffed() {
    let site = Site::new();
    site.configure(&sample_store(), "pages = true\n");
    let server = site.start();
    let token = site.token(&["--rights", "read,push,pin"]);
    let path = MadePath::new("page");
    server.publish(&token, &path);
    let name = &path.store_path[11..];
    let page = "<html><script>alert(1)</script>";
    let log = format!("/upload/log/{name}");
    assert_unsniffed(&server.put(&token, &log, page), &log);
    let built = format!("/log/{}", &sample("built")[11..]);
    for target in [log, format!("/log/{name}"), built] {
        for method in ["GET", "HEAD"] {
            let response = server.request(method, &target, "");
            assert_eq!(response.status, 200, "{target}");
            assert_unsniffed(&response, &target);
            let media_type = response.header("content-type");
            assert_eq!(media_type, Some("text/plain; charset=utf-8"), "{target}");
        }
    }
    for target in ["/", "/uploads", &format!("/build-log/{name}"), "/nowhere"] {
        let response = server.get(target);
        let is_page = response.header("content-type") != Some("text/plain");
        assert!(
            is_page || response.text() == "File not found.\n",
            "{target}"
        );
        if is_page {
            assert_unsniffed(&response, target);
        }
    }
    let other = format!("/{}.narinfo", MadePath::new("other").hash_part());
    for (method, target, token, body) in [
        ("PUT", path.target(), "smv1_<script>", page),
        ("PUT", path.target(), "", page),
        ("PUT", path.target(), &token, page),
        ("PUT", other, &token, page),
        ("PUT", path.file_target(), &token, page),
        ("PUT", "/upload/pin/%3Cscript%3E".to_owned(), &token, name),
        ("PUT", "/upload/pin/%3Cscript%3E".to_owned(), &token, page),
        (
            "PUT",
            "/upload/pin/%3Cscript%3E%00".to_owned(),
            &token,
            name,
        ),
        ("GET", "/upload/pin/%3Cscript%3E".to_owned(), &token, ""),
        ("GET", "/upload/pin/".to_owned(), &token, ""),
        ("POST", "/upload/push/1/open".to_owned(), &token, page),
        ("DELETE", "/upload/pin/%3Cscript%3E".to_owned(), &token, ""),
        ("POST", "/narinfos".to_owned(), "", page),
    ] {
        let fields = match token {
            "" => String::new(),
            token => format!("Authorization: Bearer {token}\r\n"),
        };
        let response = support_uploads::send(server.address, method, &target, &fields, body);
        assert_unsniffed(&response, &format!("{method} {target}"));
    }
}
