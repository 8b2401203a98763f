//! A client receives server-sent events as they are sent, and the sender learns that a client has
//! left.

mod support;

use std::sync::Mutex;
use std::sync::mpsc::channel;

use samovar_http::Router;
use samovar_web::{Event, events};
use support::{Connection, serve};
use testkit::eventually;

#[test]
fn events_arrive_one_by_one() {
    let (opened, senders) = channel();
    let opened = Mutex::new(opened);
    let router = Router::new().get("/events", move |_| {
        let (sender, response) = events();
        opened.lock().unwrap().send(sender).unwrap();
        response
    });
    let (_server, addr) = serve(router);
    let mut client = Connection::connect(addr);
    let head = client.begin("GET", "/events", &[]);
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    assert_eq!(head.header("cache-control"), Some("no-store"));
    let sender = senders.recv().unwrap();
    let mut received = String::new();
    let mut receive_to = |client: &mut Connection, end: &str| {
        while !received.ends_with(end) {
            let piece = client.try_piece(1000).unwrap().unwrap();
            received.push_str(std::str::from_utf8(piece).unwrap());
        }
        std::mem::take(&mut received)
    };
    assert_eq!(receive_to(&mut client, "\n\n"), ": \n\n");
    let tick = Event::new("a\r\nb").name("tick").id("1");
    sender.send(&tick).unwrap();
    assert_eq!(
        receive_to(&mut client, "b\n\n"),
        "event: tick\nid: 1\ndata: a\ndata: b\n\n"
    );
    sender.send(Event::new("c")).unwrap();
    assert_eq!(receive_to(&mut client, "c\n\n"), "data: c\n\n");
    drop(client);
    eventually("the sender is told", || sender.send(&tick).is_err());
}
