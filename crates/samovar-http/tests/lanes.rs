#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
//! Requests that hang in one lane occupy no worker slots of other lanes, and complete once the hang
//! ends.

mod support;
mod support_tls;

use std::io::{self, Read as _, Write as _};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::{
    Batch, Body, Head, Inline, Limits, Listener, Prepared, Progress, Reply, Request, Response,
    Service, Source, Turn,
};
use support::{Reader, connect, eventually, serve};
use support_tls::Authority;

const WORKERS: usize = 2;
const DOWNLOADS: usize = 40;

/// A simulated disk that hangs until `recover` is called.
#[derive(Debug, Default)]
struct Disk {
    is_well: Mutex<bool>,
    recovered: Condvar,
}

impl Disk {
    fn read(&self) {
        let is_well = self.is_well.lock().unwrap();
        drop(self.recovered.wait_while(is_well, |is_well| !*is_well));
    }

    fn recover(&self) {
        *self.is_well.lock().unwrap() = true;
        self.recovered.notify_all();
    }
}

/// Ends the disk's hang when dropped, so that a failing test does not block.
struct Recovery<'a>(&'a Disk);

impl Drop for Recovery<'_> {
    fn drop(&mut self) {
        self.0.recover();
    }
}

struct Store(Arc<Disk>);

/// Request extension: the costly part of the work is done.
struct Computed;

/// A body that is read from the simulated disk.
struct File(Arc<Disk>, u64);

impl Source for File {
    fn len(&self) -> Option<u64> {
        Some(100_000)
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        self.0.read();
        let len = batch
            .room_len()
            .min(30_000)
            .min(usize::try_from(self.1).unwrap());
        batch.put(&vec![b'x'; len]);
        self.1 -= len as u64;
        Ok(if self.1 == 0 {
            Progress::End
        } else {
            Progress::More
        })
    }
}

impl Service for Store {
    type Local = ();

    fn local(&self) {}

    fn inline(&self, (): &mut (), _: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        match head.path() {
            b"/memory" => reply.prepared(&Prepared::new(Status::OK, &[], b"memory")),
            b"/prompt" | b"/hang" => reply.dispatch(),
            b"/costly" | b"/again" => reply.dispatch_costly(),
            b"/write" => reply.dispatch_writing(),
            _ => reply.dispatch_slow(),
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        match request.head().path() {
            b"/prompt" => Response::text(Status::OK, "prompt"),
            b"/cached" => Response::text(Status::OK, "cached"),
            b"/costly" if request.extensions().get::<Computed>().is_none() => {
                self.0.read();
                request.extensions_mut().insert(Computed);
                Response::requeue_slow()
            }
            b"/again" => Response::requeue_slow(),
            b"/costly" => Response::text(Status::OK, "computed"),
            b"/body" => {
                let body = File(Arc::clone(&self.0), 100_000);
                Response::new(Status::OK, Body::Source(Box::new(body)))
            }
            _ => {
                self.0.read();
                Response::text(Status::OK, "slow")
            }
        }
    }
}

#[test]
fn requests_in_other_lanes_are_served_while_all_slow_requests_hang() {
    let disk = Arc::new(Disk::default());
    let stall_time = Duration::from_millis(300);
    let (server, addr) = serve(Store(Arc::clone(&disk)), |builder| {
        builder.workers(WORKERS).limits(Limits {
            stall_time,
            ..Limits::default()
        })
    });
    let recovery = Recovery(&disk);
    let mut downloads: Vec<_> = (0..DOWNLOADS)
        .map(|number| {
            let mut client = Reader::new(connect(addr));
            let path = if number % 2 == 0 { "/body" } else { "/handler" };
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            client
        })
        .collect();
    eventually("all places are taken", || {
        let load = server.load();
        load.running_count == WORKERS && load.queued_count == DOWNLOADS - WORKERS
    });
    let mut client = Reader::new(connect(addr));
    for _ in 0..200 {
        client.send("GET /prompt HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.next(false).unwrap().body, b"prompt");
    }
    eventually("the last of them is done", || {
        server.load().running_count == WORKERS
    });
    // Longer than the stall limit for clients: the server causes this delay, so clients are not
    // disconnected.
    std::thread::sleep(4 * stall_time);
    drop(recovery);
    for (number, client) in downloads.iter_mut().enumerate() {
        let answer = client.next(false).unwrap();
        let expected: &[u8] = if number % 2 == 0 {
            &[b'x'; 100_000]
        } else {
            b"slow"
        };
        assert!(answer.body == expected, "download {number}");
    }
}

#[test]
fn requests_that_read_a_disk_are_served_while_all_that_write_hang() {
    let disk = Arc::new(Disk::default());
    let (server, addr) = serve(Store(Arc::clone(&disk)), |builder| builder.workers(WORKERS));
    let recovery = Recovery(&disk);
    let mut uploads: Vec<_> = (0..8).map(|_| Reader::new(connect(addr))).collect();
    for client in &mut uploads {
        client.send("GET /write HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    eventually("all places are taken", || {
        let load = server.load();
        load.running_count == WORKERS && load.queued_count == 8 - WORKERS
    });
    let mut client = Reader::new(connect(addr));
    client.send("GET /cached HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.next(false).unwrap().body, b"cached");
    drop(recovery);
    for client in &mut uploads {
        assert_eq!(client.next(false).unwrap().body, b"slow");
    }
}

#[test]
fn costly_requests_run_one_at_a_time_and_delay_no_others() {
    let computing = Arc::new(Disk::default());
    let (server, addr) = serve(Store(Arc::clone(&computing)), |builder| {
        builder.workers(WORKERS)
    });
    let recovery = Recovery(&computing);
    let mut costly: Vec<_> = (0..5).map(|_| Reader::new(connect(addr))).collect();
    for client in &mut costly {
        client.send("GET /costly HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    eventually("one of them computes", || {
        let load = server.load();
        load.running_count == 1 && load.queued_count == 4
    });
    let mut client = Reader::new(connect(addr));
    client.send("GET /prompt HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.next(false).unwrap().body, b"prompt");
    // The lane has one slot. The worker that has just finished is free again at once.
    eventually("one of them computes", || {
        let load = server.load();
        load.running_count == 1 && load.queued_count == 4
    });
    drop(recovery);
    for client in &mut costly {
        assert_eq!(client.next(false).unwrap().body, b"computed");
        // Afterwards, the connection serves other requests as usual.
        client.send("GET /prompt HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.next(false).unwrap().body, b"prompt");
    }
}

#[test]
fn a_request_requeued_into_a_full_lane_gets_503() {
    let disk = Arc::new(Disk::default());
    let (server, addr) = serve(Store(Arc::clone(&disk)), |builder| {
        builder.workers(1).limits(Limits {
            queue_len_max: 1,
            ..Limits::default()
        })
    });
    let recovery = Recovery(&disk);
    let mut slow: Vec<_> = (0..2).map(|_| Reader::new(connect(addr))).collect();
    slow[0].send("GET /handler HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("one hangs", || server.load().running_count == 1);
    slow[1].send("GET /handler HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("one waits", || server.load().queued_count == 1);
    let mut client = Reader::new(connect(addr));
    client.send("GET /again HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = client.next(false).unwrap();
    assert_eq!(answer.status, 503);
    drop(recovery);
    for client in &mut slow {
        assert_eq!(client.next(false).unwrap().body, b"slow");
    }
}

#[test]
fn tls_handshakes_complete_while_the_handlers_of_all_lanes_hang() {
    let authority = Authority::new("lanes");
    let config = authority.sign(&["a.test"]).builder().build().unwrap();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
    let disk = Arc::new(Disk::default());
    let (server, addr) = serve(Store(Arc::clone(&disk)), |builder| {
        builder.workers(WORKERS).listen(listener.tls(config))
    });
    let recovery = Recovery(&disk);
    let paths = [["/hang"; 4], ["/slow"; 4], ["/costly"; 4]].concat();
    let mut hanging: Vec<_> = paths
        .into_iter()
        .map(|path| {
            let mut client = Reader::new(connect(addr));
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            client
        })
        .collect();
    eventually("all places are taken, and more requests wait", || {
        let load = server.load();
        load.running_count == 2 * WORKERS + 1 && load.queued_count == 12 - 2 * WORKERS - 1
    });
    for _ in 0..3 {
        let mut client = authority.client().connect(server.local_addrs()[1]).unwrap();
        let request = "GET /memory HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("\r\n\r\nmemory"), "{answer}");
    }
    drop(recovery);
    for client in &mut hanging {
        assert_eq!(client.next(false).unwrap().status, 200);
    }
}
