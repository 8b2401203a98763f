//! Waits for many sockets on one thread.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

/// Sockets that epoll watches for readability. The key of a socket is its index in `streams`.
pub(crate) struct Fleet {
    pub(crate) streams: Vec<TcpStream>,
    poll: OwnedFd,
    events: Vec<Event>,
}

impl Fleet {
    /// Registers `streams` and makes them non-blocking.
    pub(crate) fn new(streams: Vec<TcpStream>) -> io::Result<Self> {
        let mut fleet = Self {
            streams: Vec::with_capacity(streams.len()),
            poll: epoll::create(CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(512),
        };
        for stream in streams {
            fleet.add(stream)?;
        }
        Ok(fleet)
    }

    /// Registers a stream and makes it non-blocking.
    pub(crate) fn add(&mut self, stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let key = EventData::new_u64(self.streams.len() as u64);
        epoll::add(&self.poll, &stream, key, EventFlags::IN)?;
        self.streams.push(stream);
        Ok(())
    }

    /// Stops watching a socket.
    pub(crate) fn forget(&self, key: usize) -> io::Result<()> {
        if let Some(stream) = self.streams.get(key) {
            epoll::delete(&self.poll, stream)?;
        }
        Ok(())
    }

    /// Waits at most `timeout`; returns the keys of readable sockets.
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<Vec<usize>> {
        self.events.clear();
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let room = rustix::buffer::spare_capacity(&mut self.events);
        epoll::wait(&self.poll, room, Some(&timeout))?;
        let keys = self.events.iter().map(|event| event.data.u64());
        Ok(keys.filter_map(|key| usize::try_from(key).ok()).collect())
    }
}
