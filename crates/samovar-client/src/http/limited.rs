//! Clients of servers that may not lead requests into the network of this machine.

use std::path::Path;
use std::time::Duration;

use ureq::Agent;
use ureq::config::RedirectAuthHeaders;
use ureq::unversioned::transport::DefaultConnector;

use super::{Http, Patience};
use crate::agent::{builder, builder_with};
use crate::guarded::Guarded;
use crate::pace::Pace;
use crate::remote::Remote;

/// Maximum number of idle connections to a server with [`Http::guarded`].
const GUARDED_AT_ONCE_MAX: usize = 64;

impl Http {
    /// Returns a client of a server that is trusted only as far as it is public: it may redirect a
    /// request at most five times, and not to an address of this machine or its network, unless its
    /// own address is of that kind. The login is sent to the server's own host alone.
    ///
    /// `silence`: maximum wait for a connection, for the head of a response, and for each read of
    /// its body.
    ///
    /// # Errors
    ///
    /// The trusted certificates of this machine cannot be read.
    pub fn guarded(remote: Remote, silence: Duration) -> anyhow::Result<Self> {
        let pace = Pace {
            silence,
            ..Pace::DOWNLOAD
        };
        let patience = Patience::QUERY.with_pace(pace);
        let agent = |idle_count_max| -> anyhow::Result<Agent> {
            let config = builder(&remote, patience, None)?
                .max_redirects(5)
                .redirect_auth_headers(RedirectAuthHeaders::SameHost)
                .max_idle_connections(idle_count_max)
                .max_idle_connections_per_host(idle_count_max)
                .build();
            let resolver = Guarded::new(remote.host().to_owned());
            Ok(Agent::with_parts(
                config,
                DefaultConnector::default(),
                resolver,
            ))
        };
        let (pooled, unpooled) = (agent(GUARDED_AT_ONCE_MAX)?, agent(0)?);
        Ok(Self {
            unpooled: Some(unpooled),
            ..Self::of(pooled, remote, patience).once()
        })
    }

    /// Returns a client of an issuer of ID tokens. It follows no redirects. For URLs of other hosts
    /// that the issuer names, it is limited as [`guarded`](Self::guarded); if the issuer has an
    /// HTTPS URL, it requests no others.
    ///
    /// `authorities`: PEM file with the only trusted certificates; `None`: those of this machine.
    /// `time`: maximum time of a request with its response.
    ///
    /// # Errors
    ///
    /// The trusted certificates cannot be read.
    pub fn of_issuer(
        remote: Remote,
        authorities: Option<&Path>,
        time: Duration,
    ) -> anyhow::Result<Self> {
        let pace = Pace {
            silence: time,
            ..Pace::DOWNLOAD
        };
        let patience = Patience::QUERY.with_pace(pace);
        let config = builder_with(&remote, patience, None, authorities)?
            .max_redirects(0)
            .max_redirects_will_error(false)
            .https_only(remote.is_secure())
            .timeout_global(Some(time))
            .max_idle_connections(0)
            .max_idle_connections_per_host(0)
            .build();
        let resolver = Guarded::new(remote.host().to_owned());
        let agent = Agent::with_parts(config, DefaultConnector::default(), resolver);
        Ok(Self::of(agent, remote, patience).once())
    }
}
