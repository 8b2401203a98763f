//! Lower bound of the cost of a server: epoll, receive and send without parsing.
//! Usage: `floor PORT THREADS [hop]`. It exits at the end of its standard input.
//!
//! With `hop`, a second thread sends each response: the lower bound of a server whose handlers may
//! block.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, sockopt};

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u16>().ok());
    let (port, threads) = (number(0).unwrap_or(8080), number(1).unwrap_or(1));
    let hops = words.get(2).is_some_and(|word| word == "hop");
    let listeners: io::Result<Vec<TcpListener>> = (0..threads).map(|_| listen(port)).collect();
    for listener in listeners? {
        std::thread::spawn(move || serve(&listener, hops.then(start_worker)));
    }
    io::Read::read_to_end(&mut io::stdin(), &mut Vec::new())?;
    Ok(())
}

/// Opens a listening socket for one thread, as samovar-http does.
fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    rustix::net::listen(&socket, 1024)?;
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A connection with a request, and whether the long response is asked for.
type Job = (Arc<TcpStream>, bool);

/// Starts a thread that sends responses.
fn start_worker() -> Sender<Job> {
    let (sender, jobs) = mpsc::channel::<Job>();
    std::thread::spawn(move || {
        let [short, long] = [13, 500].map(answer);
        for (stream, is_long) in jobs {
            let answer = if is_long { &long } else { &short };
            // The I/O thread notices that the connection has failed.
            rustix::net::send(&*stream, answer, SendFlags::NOSIGNAL).ok();
        }
    });
    sender
}

fn serve(listener: &TcpListener, worker: Option<Sender<Job>>) -> io::Result<()> {
    let answers = [13, 500].map(answer);
    let poll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(
        &poll,
        listener,
        EventData::new_u64(u64::MAX),
        EventFlags::IN,
    )?;
    let mut streams: Vec<Option<Arc<TcpStream>>> = Vec::new();
    let mut events = Vec::with_capacity(256);
    let mut buffer = vec![0; 65536];
    loop {
        events.clear();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let key = event.data.u64();
            if key == u64::MAX {
                accept(listener, &poll, &mut streams)?;
            } else if let Ok(key) = usize::try_from(key)
                && let Some(place) = streams.get_mut(key)
                && let Some(stream) = place
                && !turn(stream, &mut buffer, &answers, worker.as_ref())
            {
                *place = None;
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    poll: impl AsFd,
    streams: &mut Vec<Option<Arc<TcpStream>>>,
) -> io::Result<()> {
    while let Ok((stream, _)) = listener.accept() {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let key = streams
            .iter()
            .position(Option::is_none)
            .unwrap_or(streams.len());
        let data = EventData::new_u64(key as u64);
        epoll::add(&poll, &stream, data, EventFlags::IN | EventFlags::ET)?;
        if key == streams.len() {
            streams.push(None);
        }
        if let Some(place) = streams.get_mut(key) {
            *place = Some(Arc::new(stream));
        }
    }
    Ok(())
}

/// Responds to the requests in the received bytes; returns `false` at the end of the connection.
fn turn(
    stream: &Arc<TcpStream>,
    buffer: &mut [u8],
    answers: &[Vec<u8>; 2],
    worker: Option<&Sender<Job>>,
) -> bool {
    match rustix::net::recv(&**stream, &mut *buffer, RecvFlags::empty()) {
        Ok((0, _)) => false,
        Ok(_) => {
            // `GET /text500` and `GET /text` are told apart by this byte.
            let is_long = buffer.get(9) == Some(&b'5');
            if let Some(worker) = worker {
                return worker.send((Arc::clone(stream), is_long)).is_ok();
            }
            let [short, long] = answers;
            let answer = if is_long { long } else { short };
            rustix::net::send(stream, answer, SendFlags::NOSIGNAL).is_ok()
        }
        Err(error) => error == rustix::io::Errno::AGAIN,
    }
}

fn answer(body_len: usize) -> Vec<u8> {
    let mut answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {body_len}\r\n\
         Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n"
    )
    .into_bytes();
    answer.resize(answer.len() + body_len, b'x');
    answer
}
