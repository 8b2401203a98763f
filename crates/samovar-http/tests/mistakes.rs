//! An error in a program's routes or configuration is reported at start, with its location in the
//! source.

use std::io::ErrorKind;
use std::panic::catch_unwind;
use std::sync::{Mutex, PoisonError};

use samovar_http::http::Status;
use samovar_http::{Listener, Prepared, Response, Route, Router, Server};

static PANICKED_IN: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[test]
fn panics_report_the_source_file_of_the_caller() {
    std::panic::set_hook(Box::new(|panic| {
        let file = panic.location().unwrap().file().to_owned();
        let mut files = PANICKED_IN.lock().unwrap_or_else(PoisonError::into_inner);
        files.push(file);
    }));
    let mistakes: [fn(); 7] = [
        || drop(Response::text(Status::OK, "").header("no name", "x")),
        || drop(Response::text(Status::OK, "").set_header("Date", "x")),
        || drop(Response::redirect(Status::FOUND, "/a\r\nb")),
        || drop(Prepared::new(Status::OK, &[("A", "\n")], b"")),
        || drop(Route::new("no method", "/", |_| ())),
        || drop(Router::new().get("no path", |_| ())),
        || drop(Router::new().get("/", |_| ()).get("/", |_| ())),
    ];
    for mistake in mistakes {
        catch_unwind(mistake).unwrap_err();
    }
    drop(std::panic::take_hook());
    let files = PANICKED_IN.lock().unwrap();
    assert_eq!(files.len(), mistakes.len());
    for (file, number) in files.iter().zip(0..) {
        assert!(file.ends_with("mistakes.rs"), "{number} is in {file}");
    }
}

#[test]
fn a_server_needs_a_listener() {
    let error = Server::builder(Router::new()).start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("Builder::listen"), "{error}");
}

#[test]
fn an_address_that_cannot_be_bound_is_named() {
    let other = Listener::tcp("127.0.0.1:0".parse().unwrap(), 1).unwrap();
    let addr = other.local_addr().unwrap();
    let error = Router::new().serve(addr).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&addr.to_string()), "{error}");
}
