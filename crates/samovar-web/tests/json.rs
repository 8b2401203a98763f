//! JSON and parameters become typed values; a client that sends other ones gets an error that says
//! what is wrong.

mod support;

use std::collections::HashMap;

use samovar_http::http::Status;
use samovar_http::{Error, Request, Response, Route, Router};
use samovar_web::{Json, RequestExt, json};
use serde::{Deserialize, Serialize};
use support::{get, read};

#[derive(Debug, Serialize, Deserialize)]
struct Tea {
    name: String,
    minutes: u32,
}

fn brew(request: &mut Request) -> Result<(Status, Json<Tea>), Error> {
    Ok((Status::CREATED, Json(request.json()?)))
}

fn post(path: &str, media_type: &str, body: &str) -> Response {
    let router = Router::new()
        .post("/brew", brew)
        .route(Route::post("/streamed", brew).streaming(10 << 20));
    let request = Request::builder("POST", path).header("Content-Type", media_type);
    router.answer(request.body(body).build())
}

#[test]
fn a_body_becomes_a_value_and_a_value_a_body() {
    for path in ["/brew", "/streamed"] {
        for media_type in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/merge-patch+json",
        ] {
            let response = post(path, media_type, "{\"name\":\"ñ\", \"minutes\": 3}");
            assert_eq!(
                response.header_text("content-type"),
                Some("application/json")
            );
            assert_eq!(
                read(response),
                (201, "{\"name\":\"ñ\",\"minutes\":3}".into())
            );
        }
    }
}

#[test]
fn another_media_type_is_refused() {
    for media_type in [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "text/json",
    ] {
        let (status, text) = read(post("/brew", media_type, "{}"));
        let expected = "the body must be JSON (Content-Type: application/json)\n";
        assert_eq!((status, &*text), (415, expected), "{media_type}");
    }
}

#[test]
fn malformed_json_is_refused_with_the_place() {
    for (body, expected) in [
        ("", "EOF while parsing a value at line 1 column 0"),
        ("{\n  \"name\": tea}", "expected ident at line 2 column 12"),
        (
            "{\"name\": \"a\"}",
            "missing field `minutes` at line 1 column 13",
        ),
        (
            "{\"name\": \"a\", \"minutes\": -1}",
            "invalid value: integer `-1`, expected u32 at line 1 column 27",
        ),
    ] {
        let expected = format!("malformed JSON: {expected}\n");
        assert_eq!(
            read(post("/brew", "application/json", body)),
            (400, expected)
        );
    }
    let long = format!("\"{}\"", "x".repeat(1 << 20));
    assert_eq!(
        post("/streamed", "application/json", &long).status().code(),
        413
    );
}

#[test]
fn a_value_without_json_is_an_error_of_the_server() {
    let keys = HashMap::from([(vec![1_u8], 2_u8)]);
    assert_eq!(
        json(&keys).unwrap_err().status(),
        Status::INTERNAL_SERVER_ERROR
    );
    let response = json("text").unwrap();
    assert_eq!(read(response), (200, "\"text\"".into()));
}

fn add(request: &mut Request) -> Result<String, Error> {
    let a: i64 = request.param_as("a")?;
    let b: i64 = request.query_as("b")?;
    let c: i64 = request.query_or("c", 100)?;
    let d: Option<i64> = request.query_opt("d")?;
    Ok(format!("{a} {b} {c} {d:?}"))
}

#[test]
fn parameters_are_parsed() {
    let router = Router::new().get("/add/{a}", add).get("/bug", add);
    let check = |target: &str, status: u16, text: &str| {
        assert_eq!(
            read(get(&router, target, &[])),
            (status, text.to_owned()),
            "{target}"
        );
    };
    check("/add/1?b=2", 200, "1 2 100 None");
    check(
        "/add/%2D1?d=4&b=+2&b=%2D2&c=3",
        400,
        "the query parameter \"b\" is malformed: invalid digit found in string\n",
    );
    check("/add/-1?d=4&b=-2&b=3&c=3", 200, "-1 -2 3 Some(4)");
    check(
        "/add/x?b=2",
        400,
        "the path parameter \"a\" is malformed: invalid digit found in string\n",
    );
    check("/add/1", 400, "the query parameter \"b\" is missing\n");
    check(
        "/add/1?b=2&d=",
        400,
        "the query parameter \"d\" is malformed: cannot parse integer from empty string\n",
    );
    check("/bug", 500, "Internal Server Error\n");
}

/// A helper of an application that uses `anyhow`.
fn helper(request: &mut Request) -> anyhow::Result<usize> {
    use anyhow::Context;
    let len = std::io::copy(&mut request.reader(), &mut std::io::sink()).context("no body")?;
    anyhow::ensure!(len > 0, "empty");
    Ok(usize::try_from(len)?)
}

#[test]
fn errors_of_anyhow_are_errors_of_handlers() {
    let router = Router::new().post("/", |request: &mut Request| -> Result<String, Error> {
        Ok(helper(request)?.to_string())
    });
    let post = |body: &str| read(router.answer(Request::builder("POST", "/").body(body).build()));
    assert_eq!(post("123"), (200, "3".into()));
    assert_eq!(post(""), (500, "Internal Server Error\n".into()));
}
