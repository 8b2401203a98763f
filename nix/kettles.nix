# services.kettles: `kettles serve` in a sandboxed unit, with SQLite or with PostgreSQL on this machine.
# Evaluated and verified as nix/README.md describes; never run on NixOS.
{
  config,
  lib,
  pkgs,
  ...
}:

let
  cfg = config.services.kettles;
  inherit (lib)
    hasPrefix
    mkIf
    mkMerge
    mkOption
    mkPackageOption
    optional
    optionals
    types
    ;
  # A URL without a host selects a database on this machine, through its Unix socket, named after the user.
  isLocal = hasPrefix "postgresql:///" cfg.database;
in
{
  options.services.kettles = {
    enable = mkOption {
      type = types.bool;
      default = false;
      description = "Whether to serve kettles.";
    };

    package = mkPackageOption pkgs "kettles" { };

    hostname = mkOption {
      type = types.str;
      default = "127.0.0.1";
      description = "Name or address to listen on.";
    };

    port = mkOption {
      type = types.port;
      default = 8080;
      description = "Port to listen on.";
    };

    openFirewall = mkOption {
      type = types.bool;
      default = false;
      description = "Whether the firewall lets the port through.";
    };

    database = mkOption {
      type = types.str;
      default = "/var/lib/kettles/kettles.db";
      description = ''
        A file of SQLite, or the URL of a PostgreSQL. `postgresql:///kettles` is a database of this
        machine, which is then set up.
      '';
    };

    processes = mkOption {
      type = types.ints.positive;
      default = 1;
      description = "Processes that share the port; more than one need a PostgreSQL.";
    };

    ownPort = mkOption {
      type = types.port;
      default = 8081;
      description = ''
        Where, on the loopback, Prometheus asks the first of several processes alone; the second is at
        the next port, and so on.
      '';
    };

    maxConnections = mkOption {
      type = types.ints.positive;
      default = 20000;
      description = "Kettles that may be connected, to each process. What else it opens is added.";
    };

    retain = mkOption {
      type = types.ints.unsigned;
      default = 7;
      description = "Days for which measurements are kept; 0 means for ever.";
    };

    adminTokenFile = mkOption {
      type = types.nullOr types.str;
      default = null;
      description = ''
        A file with the token of those who may give commands. It is handed over as a credential, so it
        may be for root alone, and is never copied into the store.
      '';
    };
  };

  config = mkIf cfg.enable (mkMerge [
    {
      systemd.services.kettles = {
        description = "The kettles' server";
        # Where NixOS has postgresql.target, it is reached when the database and its owner exist.
        after = [
          "network.target"
        ]
        ++ optionals isLocal [
          "postgresql.service"
          "postgresql.target"
        ];
        requires = optional isLocal "postgresql.service";
        wantedBy = [ "multi-user.target" ];
        serviceConfig = import ./hardened.nix // {
          ExecStart = lib.concatStringsSep " " (
            [
              "${cfg.package}/bin/kettles serve"
              "--hostname ${cfg.hostname}"
              "--port ${toString cfg.port}"
              "--database ${cfg.database}"
              "--retain ${toString cfg.retain}"
            ]
            ++ optionals (cfg.processes > 1) [
              "--processes ${toString cfg.processes}"
              "--own-port ${toString cfg.ownPort}"
            ]
            # systemd replaces %d by the directory of the credentials.
            ++ optional (cfg.adminTokenFile != null) "--admin-token %d/admin-token"
          );
          LoadCredential = optional (cfg.adminTokenFile != null) "admin-token:${cfg.adminTokenFile}";
          StateDirectory = "kettles";
          StateDirectoryMode = "0700";
          # PostgreSQL authenticates local clients by their user names.
          User = "kettles";
          Restart = "on-failure";
          RestartSec = "2s";
          TimeoutStopSec = "20s";
          LimitNOFILE = cfg.maxConnections + 1024;
          # The server reads pressure from /proc, outside of the directories of processes.
          ProcSubset = "all";
        };
      };

      networking.firewall.allowedTCPPorts = optionals cfg.openFirewall [ cfg.port ];
    }

    (mkIf isLocal {
      services.postgresql = {
        enable = true;
        ensureDatabases = [ "kettles" ];
        ensureUsers = [
          {
            name = "kettles";
            ensureDBOwnership = true;
          }
        ];
      };
    })
  ]);
}
