//! What the command line and the environment ask for together. Options come first.

use std::num::NonZeroU64;

use samovar_server::config::{
    AdminSettings, CacheSettings, Configuration, Connections, Names, Pages,
};

use crate::cli::{Options, Warning};
use crate::environment::Environment;

/// What is to be done.
pub fn configuration(
    options: Options,
    environment: Environment,
    warnings: &[Warning],
) -> Configuration {
    let defaults = Configuration::default();
    let access_log = options.access_log_target();
    let access_log_format = options.access_log_form();
    let client_address = options.client_address();
    let is_verbose = options.is_verbose() || environment.debug;
    let remarks = warnings.iter().map(ToString::to_string);
    let remarks = remarks.chain(environment.warnings.iter().map(ToString::to_string));
    let scrub_rate = options.scrub_rate.or(environment.scrub_rate);
    let admin = options.admin.or(environment.admin);
    Configuration {
        admin: AdminSettings {
            listeners: admin.into_iter().collect(),
            is_default: false,
            ..AdminSettings::default()
        },
        names: Names {
            program: "nix-serve",
            certificate: "--ssl-cert",
            certificate_key: "--ssl-key",
            port: "--port",
            address: "--listen",
            admin: "--admin",
        },
        listeners: options.listeners,
        listen_given: options.listen_given,
        tls: options.tls,
        backlog: options.backlog,
        workers: options.workers,
        connections: Connections {
            requests_max: options.max_requests,
            is_kept: options.keepalive,
            idle_time: options.keepalive_timeout,
            head_time: options.read_timeout,
            stall_time: options.timeout,
            ..Connections::default()
        },
        user: options.user,
        group: options.group,
        pid_file: options.pid_file,
        error_log: options.error_log,
        is_verbose,
        access_log,
        access_log_format,
        client_address,
        store: options.store,
        nar_cache: options.nar_cache.or(environment.nar_cache),
        cache_directory: environment
            .cache_directory
            .unwrap_or(defaults.cache_directory),
        nar_cache_size: options.nar_cache_size.or(environment.nar_cache_size),
        hold: options.hold.or(environment.hold),
        verify: options.verify.or(environment.verify).unwrap_or_default(),
        state_directory: options.state_directory.or(environment.state_directory),
        scrub_rate: scrub_rate.and_then(NonZeroU64::new),
        caches: vec![CacheSettings {
            name: String::new(),
            prefix: options.path_prefix,
            priority: options.priority.unwrap_or(CacheSettings::PRIORITY_DEFAULT),
            secret_key_files: environment.secret_key_file.into_iter().collect(),
            pages: (options.pages || environment.pages).then(Pages::default),
            ..CacheSettings::default()
        }],
        remarks: remarks.collect(),
    }
}
