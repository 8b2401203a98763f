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
    listToAttrs
    mapAttrsToList
    mkDefault
    mkEnableOption
    mkIf
    mkMerge
    mkOption
    mkPackageOption
    optionalString
    types
    ;
  format = pkgs.formats.toml { };
  file = format.generate "samovar.toml" cfg.settings;

  key = number: "key${toString number}";
  nixServe = config.services.nix-serve or { enable = false; };
  isAny =
    address:
    builtins.elem address [
      "0.0.0.0"
      "::"
      "[::]"
    ];
  # The addresses of the configuration file. systemd takes a port alone for all addresses.
  stream =
    address:
    let
      port = builtins.match "[*]?:([0-9]+)" address;
      path = builtins.match "unix:(.*)" address;
    in
    if port != null then
      builtins.head port
    else if path != null then
      builtins.head path
    else
      address;
  listen = cfg.settings.listen or [ ];
  streams =
    if cfg.settings ? listen then
      map stream (if builtins.isList listen then listen else [ listen ])
    else
      [ "${cfg.address}:${toString cfg.port}" ] ++ cfg.extraSockets;
  sharesAddress =
    isAny cfg.address || isAny nixServe.bindAddress || cfg.address == nixServe.bindAddress;
in
{
  options.services.samovar = {
    enable = mkEnableOption "Samovar, which serves this machine's Nix store as a binary cache";

    package = mkPackageOption pkgs "samovar" { };

    address = mkOption {
      type = types.str;
      default = if cfg.nginx.hostName == null then "[::]" else "127.0.0.1";
      defaultText = lib.literalMD "`[::]`, or `127.0.0.1` if `nginx.hostName` is set";
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

    extraSockets = mkOption {
      type = types.listOf types.str;
      default = [ ];
      example = [
        "/run/samovar/socket"
        "192.0.2.1:5000"
      ];
      description = "Further addresses and unix sockets to listen on.";
    };

    secretKeyFiles = mkOption {
      type = types.listOf types.str;
      default = [ ];
      description = ''
        Files of the keys to sign with, as `nix-store --generate-binary-cache-key` makes them. They
        are passed as credentials, so they may be readable by root alone, and are never copied into
        the store.
      '';
    };

    credentials = mkOption {
      type = types.attrsOf types.str;
      default = { };
      example = {
        team-a-users = "/var/keys/team-a.users";
      };
      description = ''
        Further files that the service may read, by name. `settings` refers to them as
        `credential:NAME`, for example
        `caches.team-a.access.users-file = "credential:team-a-users"`.
      '';
    };

    tls.certificateFile = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "/var/lib/acme/cache.example.org/fullchain.pem";
      description = ''
        PEM file with the server's certificate and those of its issuers, for HTTPS; needs
        `tls.keyFile`. Passed as a credential: a renewal takes effect when the service restarts.
      '';
    };

    tls.keyFile = mkOption {
      type = types.nullOr types.str;
      default = null;
      description = "PEM file with the private key of `tls.certificateFile`; a credential.";
    };

    usersFile = mkOption {
      type = types.nullOr types.str;
      default = null;
      description = "Users who may read, as `samovar password` prints them; a credential.";
    };

    tokensFile = mkOption {
      type = types.nullOr types.str;
      default = null;
      description = "Tokens that may read, as `samovar token` prints them; a credential.";
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
        description = "Time since the last use after which uploaded paths are deleted, at least 1h; never if null.";
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

      bucket.url = mkOption {
        type = types.nullOr types.str;
        default = null;
        example = "s3://nix-cache?region=eu-central-1";
        description = ''
          Bucket for the files of uploads; they are in `/var/lib/samovar/storage` if null. With a
          bucket, that directory has temporary files and the disk cache.
        '';
      };

      bucket.credentialsFile = mkOption {
        type = types.nullOr types.str;
        default = null;
        description = "File with the access key of the bucket: two lines, the ID and the secret; a credential.";
      };

      database.url = mkOption {
        type = types.nullOr types.str;
        default = null;
        example = "postgresql://samovar@db.example.org/samovar?sslmode=verify-full";
        description = ''
          PostgreSQL database that several servers with one bucket share; needs `bucket.url`. The
          configuration is world-readable: pass a password by `passwordFile`.
        '';
      };

      database.passwordFile = mkOption {
        type = types.nullOr types.str;
        default = null;
        description = "File with the password for the database; a credential.";
      };
    };

    settings = mkOption {
      inherit (format) type;
      default = { };
      example = {
        priority = 30;
        connections.idle-time = "60 s";
      };
      description = ''
        The configuration file; all options are in the reference. systemd opens the sockets of
        `listen`, which must be IP addresses or paths; without it, those of `address`, `port` and
        `extraSockets`. The file is world-readable in the store: pass secrets by `secretKeyFiles`, `usersFile`, `tokensFile`, `tls` or `credentials`.
      '';
    };

    nginx.hostName = mkOption {
      type = types.nullOr types.str;
      default = null;
      description = ''
        Name of an nginx virtual host that proxies to the cache; none if null. The cache then listens
        on the loopback address, unless `address` is set, and takes the addresses of clients from
        nginx.
      '';
    };
  };

  config = mkIf cfg.enable {
    assertions = [
      {
        assertion =
          !(cfg.settings ? listen)
          || cfg.nginx.hostName == null && !cfg.openFirewall && cfg.extraSockets == [ ];
        message = "services.samovar.settings.listen: for nginx.hostName, openFirewall and extraSockets, set services.samovar.address and port instead";
      }
      {
        assertion = (cfg.tls.certificateFile == null) == (cfg.tls.keyFile == null);
        message = "services.samovar.tls: set both certificateFile and keyFile, or none";
      }
      {
        assertion = cfg.nginx.hostName == null || cfg.tls.certificateFile == null;
        message = "services.samovar.nginx.hostName: nginx proxies without TLS; give the certificate to the virtual host, not to services.samovar.tls";
      }
      {
        assertion =
          cfg.uploads.enable || removeAttrs cfg.uploads [ "enable" ] == {
            retention = null;
            retentionRules = [ ];
            retentionSize = null;
            quota = null;
            bucket = {
              url = null;
              credentialsFile = null;
            };
            database = {
              url = null;
              passwordFile = null;
            };
          };
        message = "services.samovar.uploads: set enable as well, or remove the other options";
      }
      {
        assertion = !(nixServe.enable && nixServe.port == cfg.port && sharesAddress);
        message = "services.samovar.port: services.nix-serve listens on port ${toString cfg.port} too; change one of the ports, or disable one of the services";
      }
    ];

    services.samovar = mkMerge [
      (mkIf (cfg.secretKeyFiles != [ ]) {
        credentials = listToAttrs (
          imap0 (number: file: {
            name = key number;
            value = file;
          }) cfg.secretKeyFiles
        );
        settings.secret-key-files = imap0 (number: _: "credential:${key number}") cfg.secretKeyFiles;
      })
      (mkIf (cfg.tls.certificateFile != null) {
        credentials.certificate = cfg.tls.certificateFile;
        settings.tls.certificate = "credential:certificate";
      })
      (mkIf (cfg.tls.keyFile != null) {
        credentials.tls-key = cfg.tls.keyFile;
        settings.tls.key = "credential:tls-key";
      })
      (mkIf (cfg.usersFile != null) {
        credentials.users = cfg.usersFile;
        settings.access.users-file = "credential:users";
      })
      (mkIf (cfg.tokensFile != null) {
        credentials.tokens = cfg.tokensFile;
        settings.access.tokens-file = "credential:tokens";
      })
      (mkIf (cfg.nginx.hostName != null) {
        settings = {
          access.trusted-proxies = mkDefault [
            "127.0.0.1"
            "::1"
          ];
          log.client-address = mkDefault "forwarded";
        };
      })
      (mkIf cfg.uploads.enable {
        # Below the StateDirectory: the rest of the file system is read-only to the service.
        settings.storage = "/var/lib/samovar/storage";
      })
      (mkIf (cfg.uploads.enable && cfg.uploads.retention != null) {
        settings.uploads.retention = cfg.uploads.retention;
      })
      (mkIf (cfg.uploads.enable && cfg.uploads.retentionRules != [ ]) {
        settings.uploads.retention-rules = cfg.uploads.retentionRules;
      })
      (mkIf (cfg.uploads.enable && cfg.uploads.retentionSize != null) {
        settings.uploads.retention-size = cfg.uploads.retentionSize;
      })
      (mkIf (cfg.uploads.enable && cfg.uploads.quota != null) {
        settings.uploads.quota = cfg.uploads.quota;
      })
      (mkIf (cfg.uploads.enable && cfg.uploads.bucket.url != null) {
        settings.bucket.url = cfg.uploads.bucket.url;
      })
      (mkIf (cfg.uploads.enable && cfg.uploads.bucket.credentialsFile != null) {
        credentials.bucket = cfg.uploads.bucket.credentialsFile;
        settings.bucket.credentials-file = "credential:bucket";
      })
      (mkIf (cfg.uploads.enable && cfg.uploads.database.url != null) {
        settings.database.url = cfg.uploads.database.url;
      })
      (mkIf (cfg.uploads.enable && cfg.uploads.database.passwordFile != null) {
        credentials.database = cfg.uploads.database.passwordFile;
        settings.database.password-file = "credential:database";
      })
    ];

    # The default of `samovar doctor` and the other commands.
    environment.systemPackages = [ cfg.package ];
    environment.etc."samovar/samovar.toml".source = file;

    # GC leases need the Nix daemon, also where few users may connect to it.
    nix.settings.extra-allowed-users = [ "samovar" ];

    systemd.sockets.samovar = {
      description = "Samovar, its sockets";
      wantedBy = [ "sockets.target" ];
      listenStreams = streams;
      socketConfig = {
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
        LoadCredential = mapAttrsToList (name: file: "${name}:${file}") cfg.credentials;
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
      upstreams.samovar = {
        servers."${cfg.address}:${toString cfg.port}" = { };
        extraConfig = "keepalive 32;";
      };
      virtualHosts.${cfg.nginx.hostName}.locations."/" = {
        proxyPass = "http://samovar";
        # These would send `Host` a second time, which the server refuses.
        recommendedProxySettings = false;
        # nginx passes NARs on without buffering: it writes no copy to disk, and the cache notices slow
        # clients.
        extraConfig = ''
          proxy_http_version 1.1;
          proxy_set_header Connection "";
          proxy_set_header Host $host;
          proxy_set_header X-Forwarded-For $remote_addr;
          proxy_buffering off;
          gzip off;
        ''
        # Uploads have no limit of their own here, and nginx writes no copy of them to disk.
        + optionalString cfg.uploads.enable ''
          client_max_body_size 0;
          proxy_request_buffering off;
        '';
      };
    };
  };
}
