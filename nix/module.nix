# services.samovar: `samovar serve` in a sandboxed unit, with sockets from systemd.
{
  config,
  lib,
  pkgs,
  ...
}:

let
  cfg = config.services.samovar;
  inherit (lib)
    imap0
    mkIf
    mkOption
    optionalAttrs
    types
    ;

  credentials = imap0 (number: file: {
    name = "key${toString number}";
    inherit file;
  }) cfg.secretKeyFiles;

  settings =
    cfg.settings
    // optionalAttrs (credentials != [ ]) {
      secret-key-files = map (credential: "credential:${credential.name}") credentials;
    }
    // optionalAttrs cfg.uploads.enable {
      # Below the StateDirectory: the rest of the file system is read-only to the service.
      storage = "/var/lib/samovar/storage";
      uploads =
        (cfg.settings.uploads or { })
        // optionalAttrs (cfg.uploads.retention != null) { inherit (cfg.uploads) retention; }
        // optionalAttrs (cfg.uploads.retentionRules != [ ]) {
          retention-rules = cfg.uploads.retentionRules;
        }
        // optionalAttrs (cfg.uploads.retentionSize != null) {
          retention-size = cfg.uploads.retentionSize;
        }
        // optionalAttrs (cfg.uploads.quota != null) { inherit (cfg.uploads) quota; };
    };

  file = (pkgs.formats.toml { }).generate "samovar.toml" settings;
in
{
  options.services.samovar = {
    enable = mkOption {
      type = types.bool;
      default = false;
      description = "Whether to serve this machine's Nix store as a binary cache.";
    };

    package = mkOption {
      type = types.package;
      default = pkgs.samovar;
      description = "The package with `bin/samovar`.";
    };

    address = mkOption {
      type = types.str;
      default = if cfg.nginx.hostName == null then "[::]" else "127.0.0.1";
      defaultText = "[::], or 127.0.0.1 if nginx.hostName is set";
      description = "Address to listen on, IPv6 in brackets. `[::]` takes IPv4 as well.";
    };

    port = mkOption {
      type = types.port;
      default = 5000;
      description = "Port to listen on.";
    };

    openFirewall = mkOption {
      type = types.bool;
      default = false;
      description = "Whether the firewall lets the port through.";
    };

    secretKeyFiles = mkOption {
      type = types.listOf types.str;
      default = [ ];
      description = ''
        Files of the keys to sign with, as `nix-store --generate-binary-cache-key` makes them. They
        are handed over as credentials, so they may be for root alone, and are never copied into the
        store.
      '';
    };

    uploads = {
      enable = mkOption {
        type = types.bool;
        default = false;
        description = ''
          Whether clients with a token may upload paths, into `/var/lib/samovar/storage`. Create a
          token as root: `samovar token create --storage /var/lib/samovar/storage --name NAME`,
          after the service has started for the first time.
        '';
      };

      retention = mkOption {
        type = types.nullOr types.str;
        default = null;
        example = "90d";
        description = "Time since the last use after which uploaded paths are deleted; never if null.";
      };

      retentionRules = mkOption {
        type = types.listOf types.str;
        default = [ ];
        example = [ "*-debug=30d" ];
        description = "Retention times by name; the first pattern that matches applies.";
      };

      retentionSize = mkOption {
        type = types.nullOr types.str;
        default = null;
        example = "500 GiB";
        description = "Total size above which the paths are deleted that were unused the longest.";
      };

      quota = mkOption {
        type = types.nullOr types.str;
        default = null;
        example = "600 GiB";
        description = "Total size above which uploads are refused.";
      };
    };

    settings = mkOption {
      type = types.attrs;
      default = { };
      description = "The configuration file, as in the reference. It is world-readable in the store.";
    };

    nginx.hostName = mkOption {
      type = types.nullOr types.str;
      default = null;
      description = ''
        Name of an nginx virtual host that proxies to the cache; none if null. The cache itself then
        listens on the loopback, unless `address` is set.
      '';
    };
  };

  config = mkIf cfg.enable {
    assertions = [
      {
        assertion = !(cfg.settings ? listen);
        message = "services.samovar.settings.listen: systemd binds the socket; set services.samovar.address and port";
      }
    ];

    systemd.sockets.samovar = {
      description = "Samovar, its sockets";
      wantedBy = [ "sockets.target" ];
      socketConfig = {
        ListenStream = "${cfg.address}:${toString cfg.port}";
        Backlog = 1024;
        NoDelay = true;
      };
    };

    systemd.services.samovar = {
      description = "Samovar, a Nix binary cache server";
      requires = [ "samovar.socket" ];
      after = [
        "network.target"
        "nix-daemon.socket"
      ];
      wantedBy = [ "multi-user.target" ];
      serviceConfig = import ./hardened.nix // {
        Type = "notify";
        NotifyAccess = "main";
        ExecStart = "${cfg.package}/bin/samovar serve --config ${file}";
        ExecReload = "${pkgs.coreutils}/bin/kill -HUP $MAINPID";
        LoadCredential = map (credential: "${credential.name}:${credential.file}") credentials;
        CacheDirectory = "samovar";
        CacheDirectoryMode = "0700";
        StateDirectory = "samovar";
        StateDirectoryMode = "0700";
        Restart = "on-failure";
        WatchdogSec = "30s";
        TimeoutStopSec = "20s";
        LimitNOFILE = "1024:524288";
      };
    };

    networking.firewall.allowedTCPPorts = mkIf cfg.openFirewall [ cfg.port ];

    services.nginx = mkIf (cfg.nginx.hostName != null) {
      enable = true;
      virtualHosts.${cfg.nginx.hostName}.locations."/" = {
        proxyPass = "http://127.0.0.1:${toString cfg.port}";
        # nginx passes NARs on without buffering: it writes no copy to disk, and the cache notices slow
        # clients.
        extraConfig = ''
          proxy_http_version 1.1;
          proxy_set_header Connection "";
          proxy_set_header Host $host;
          proxy_set_header X-Forwarded-For $remote_addr;
          proxy_buffering off;
        ''
        + (
          # Uploads have no limit of their own here, and nginx writes no copy of them to disk.
          if cfg.uploads.enable then
            ''
              client_max_body_size 0;
              proxy_request_buffering off;
            ''
          else
            ""
        );
      };
    };
  };
}
