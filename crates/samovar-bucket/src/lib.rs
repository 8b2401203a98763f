//! A blocking client of one S3 bucket.
//!
//! [`Settings`] name a bucket, and are read from a URL. [`Bucket`] sends requests to it, from any
//! number of threads. There is no runtime; a request blocks its thread.
//!
//! ```no_run
//! use samovar_bucket::{Bucket, PutOptions, Settings};
//!
//! let settings = Settings::parse("s3://cache/prod?endpoint=https://s3.example.org&region=eu")?;
//! let bucket = Bucket::open(&settings)?;
//! bucket.put("nar/a", b"bytes", &PutOptions::default())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Behaviour
//!
//! * **Engines.** Only requests that all engines know are needed: PUT, GET with a range, HEAD,
//!   DELETE, `ListObjectsV2` and multipart uploads. Conditional writes, `DeleteObjects` and
//!   checksums are used where the engine has them.
//! * **Signatures.** Each request is signed in its URL (AWS Signature Version 4), for 15 minutes.
//!   The body is not part of the signature; its SHA-256 in `x-amz-checksum-sha256` is.
//! * **Retries.** Up to six attempts, with a random pause that doubles from 100 ms; none starts
//!   later than a minute after the first. An attempt ends after 20 s in which no byte moves.
//!   Whether a request was executed although its answer was lost is found out by HEAD.
//! * **Load.** At most 64 requests are in flight. `503 SlowDown` halves that number; each number of
//!   requests that succeed in a row adds one.
//! * **Clock.** If an engine refuses the time of a signature, its `Date` is used from then on.
//! * **Proxies** of the environment (`HTTPS_PROXY`) are not used: buckets are near, and a proxy
//!   that is meant for downloads would see all that is stored.
//! * **Redirects** are not followed. An error names the region where the bucket is.
//!
//! # Engines
//!
//! `make test-s3 SERVER=NAME` runs the tests against an engine that it installs: s3s-fs 0.14 (in
//! `make test`), versitygw 1.8, `SeaweedFS` 4.48, Garage 2.5. Amazon's services have not been
//! tried; what only they do is tested with canned answers.
//!
//! # Cost
//!
//! `cargo run --release --example cost` measures it. On one core of a busy machine: a PUT of 64 KiB
//! takes 0.5 ms of processor time, a GET of 8 MiB 5 ms, a HEAD 0.2 ms; curl on one connection,
//! without a checksum, 0.4 ms for the PUT and 6 ms for the GET.
//!
//! In scope: one bucket, below one prefix. Out of scope: making buckets, their policies, versions.

#![forbid(unsafe_code)]

mod bucket;
mod clock;
mod credentials;
mod delete;
mod download;
mod error;
mod limit;
mod list;
mod multipart;
mod operation;
mod put;
mod rights;
mod settings;
mod source;
mod stat;
mod statistics;
mod wire;
mod xml;

pub use bucket::Bucket;
pub use download::Download;
pub use error::{BucketError, Fault};
pub use list::Entry;
pub use operation::Operation;
pub use put::PutOptions;
pub use rights::{Outcome, Right, RightFinding};
pub use settings::{Settings, SettingsError, Style, Timing};
pub use source::{CredentialError, CredentialSource, FixedCredentials};
pub use stat::Stat;
pub use statistics::{OperationStatistics, Statistics};
