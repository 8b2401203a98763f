//! Actors that control the server with signals: key and certificate rotation, stops and starts.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustix::process::Signal;

use crate::server::{Setup, Shared, put};
use crate::world::{Cause, Key, World, lock};
use testkit::random::SplitMix64;

/// Last line that the server logs when it reloads after HUP.
const RELOADED: &str = "the certificate was reloaded";

/// Signing key pair: the secret key's file content and the public key.
#[derive(Debug)]
pub(crate) struct Pair {
    secret: Vec<u8>,
    pub(crate) text: String,
    pub(crate) public: Key,
}

/// The certificate authority that signs the server's certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Pair {
    pub(crate) fn make(folder: &Path, name: &str) -> Result<Self> {
        let (secret, text) = testkit::nix::key_pair(folder, name);
        Ok(Self {
            secret: std::fs::read(secret)?,
            public: Key::parse(&text)?,
            text,
        })
    }

    pub(crate) fn install(&self, setup: &Setup) -> Result<()> {
        put(&setup.key(), &self.secret, 0o600)
    }
}

impl Authority {
    pub(crate) fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self(CertifiedIssuer::self_signed(
            params,
            KeyPair::generate()?,
        )?))
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn der(&self) -> Vec<u8> {
        self.0.der().to_vec()
    }

    /// Installs a new certificate and its key; returns the certificate as DER.
    pub(crate) fn install(&self, setup: &Setup, serial: u64) -> Result<Vec<u8>> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
        params.serial_number = Some(serial.into());
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.0)?;
        let (certificate_file, key_file) = setup.certificate();
        put(&certificate_file, certificate.pem().as_bytes(), 0o644)?;
        put(&key_file, key.serialize_pem().as_bytes(), 0o600)?;
        Ok(certificate.der().to_vec())
    }
}

/// Performs random control actions until the run ends.
pub(crate) fn run(
    world: &World,
    server: &Arc<Shared>,
    keys: &[Pair],
    authority: &Authority,
) -> Result<()> {
    let mut random = SplitMix64::for_actor(world.seed, "control");
    let mut serial = 1;
    while world.goes_on() {
        world.pause(random.between(300, 2000));
        let ending = lock(&server.server).ending()?;
        if let Some(status) = ending {
            world.finding(format_args!("the server has ended by itself: {status}"));
            server.kill(world).context("a server in its place")?;
        }
        match random.weighted(&[20, 25, 15, 10, 12, 10, 15, 12]) {
            0 => {
                world.note("HUP");
                server.signal_and_wait(Signal::HUP, RELOADED)?;
                world.count("HUP");
            }
            1 => {
                let pair = &keys[random.index(keys.len())];
                rotate(world, server, pair, random.percent(25))?;
            }
            2 => {
                serial += 1;
                renew(world, server, authority, serial)?;
            }
            3 => {
                world.note("USR1");
                server.signal_and_wait(Signal::USR1, "events since the start")?;
                world.count("USR1");
            }
            4 => {
                server.restart(world)?;
                world.count("TERM");
                starts_well(world)?;
            }
            5 => {
                server.kill(world)?;
                world.count("KILL");
                starts_well(world)?;
            }
            6 => server.upgrade(world)?,
            _ => halt(world, server, random.between(20, 500))?,
        }
    }
    Ok(())
}

/// Rotates the signing key. With `bad_first`, installs an invalid key first, which the server must
/// refuse.
fn rotate(world: &World, server: &Shared, pair: &Pair, bad_first: bool) -> Result<()> {
    world.note(format_args!("key {}", pair.text));
    lock(&world.keys).begin(world.now(), pair.public.clone());
    if bad_first {
        put(&server.setup.key(), b"no key", 0o600)?;
        // Wait for the last line of this reload, so that the wait for the next reload cannot match
        // it.
        server.signal_and_wait(Signal::HUP, "the configuration was not changed")?;
        lock(&server.server).wait_for(RELOADED)?;
        world.count("bad key");
    }
    pair.install(&server.setup)?;
    server.signal_and_wait(Signal::HUP, RELOADED)?;
    lock(&world.keys).end(world.now(), pair.public.clone());
    world.note(format_args!("key {} in use", pair.text));
    world.count("key");
    Ok(())
}

fn renew(world: &World, server: &Shared, authority: &Authority, serial: u64) -> Result<()> {
    // The DER is known only after the files are installed. That is early enough, because the server
    // does not read them before HUP.
    let der = Arc::new(authority.install(&server.setup, serial)?);
    lock(&world.certificates).begin(world.now(), Arc::clone(&der));
    world.note(format_args!("certificate {serial}"));
    server.signal_and_wait(Signal::HUP, RELOADED)?;
    lock(&world.certificates).end(world.now(), der);
    world.note(format_args!("certificate {serial} in use"));
    world.count("certificate");
    Ok(())
}

fn halt(world: &World, server: &Shared, time: u64) -> Result<()> {
    let held = lock(&server.server);
    world.cause(Cause::Halted, || -> Result<()> {
        held.signal(Signal::STOP)?;
        world.pause(time);
        held.signal(Signal::CONT)
    })?;
    drop(held);
    world.count("STOP and CONT");
    Ok(())
}

/// Checks that a freshly started server responds correctly within the time limit.
fn starts_well(world: &World) -> Result<()> {
    use crate::ask::{Ask, What};
    use crate::client::connection::{Connection, Manner};
    let address = lock(&world.addresses).plain.context("no address")?;
    let ask = Ask::of(What::Info);
    let (sent, started) = (world.now(), Instant::now());
    let mut connection = Connection::over(std::net::TcpStream::connect(address)?, "start")?;
    let (outcome, _) = connection.exchange(world, &ask, Manner::default());
    let time = started.elapsed();
    let is_busy = world.had(&[Cause::FewDescriptors], sent, world.now());
    if !is_busy && (outcome.status != 200 || time > Duration::from_secs(5)) {
        world.finding(format_args!("after a start: {outcome:?} after {time:?}"));
    }
    Ok(())
}
