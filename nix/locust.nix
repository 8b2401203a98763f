# services.locust: the rig's simulated users, for a server on another machine. Evaluated and verified as
# nix/README.md describes; never run on NixOS.
{
  config,
  lib,
  pkgs,
  ...
}:

let
  cfg = config.services.locust;
  inherit (lib)
    mkIf
    mkOption
    mkPackageOption
    optionals
    types
    ;
  user = if cfg.behaviour == "as-2017" then "As2017" else "Honest";
in
{
  options.services.locust = {
    enable = mkOption {
      type = types.bool;
      default = false;
      description = "Whether to run Locust. It waits to be told how many users at its web address.";
    };

    package = mkPackageOption pkgs "locust" { };

    host = mkOption {
      type = types.str;
      description = "The server, such as `http://app:8080`.";
    };

    port = mkOption {
      type = types.port;
      default = 8089;
      description = "Port of its web address, where Prometheus finds its figures, too.";
    };

    behaviour = mkOption {
      type = types.enum [
        "honest"
        "as-2017"
      ];
      default = "honest";
      description = "Both requests of a kettle each 30 s, or one of them, as the study had it.";
    };

    openFirewall = mkOption {
      type = types.bool;
      default = false;
      description = "Whether the firewall lets the port through.";
    };
  };

  config = mkIf cfg.enable {
    systemd.services.locust = {
      description = "Users for the kettles' server";
      after = [ "network.target" ];
      wantedBy = [ "multi-user.target" ];
      serviceConfig = import ./hardened.nix // {
        ExecStart = lib.concatStringsSep " " [
          "${cfg.package}/bin/locust"
          "--locustfile ${../rig/locust}/kettles.py"
          "--host ${cfg.host}"
          "--web-port ${toString cfg.port}"
          user
        ];
        Restart = "on-failure";
        # As in 2017, each user has a connection, and hence a descriptor.
        LimitNOFILE = 40000;
        # Python's foreign function interface generates code at run time.
        MemoryDenyWriteExecute = false;
      };
    };

    networking.firewall.allowedTCPPorts = optionals cfg.openFirewall [ cfg.port ];
  };
}
