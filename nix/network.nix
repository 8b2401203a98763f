# The two machines of the 2017 study, as NixOS modules: `app` has the server, its database and the
# monitoring; `locust` has the load generator. For use with `nixosSystem`, with deployment tools such as
# nixops, and in tests/kettles.nix. In 2017, app had 2 processors and 2048 MB of memory, locust 1 and
# 1536 MB.
let
  both = {
    boot.kernel.sysctl."fs.file-max" = 100000;
  };
in
{
  app = {
    imports = [
      ./kettles.nix
      ./monitoring.nix
      both
    ];
    services.kettles = {
      enable = true;
      hostname = "0.0.0.0";
      database = "postgresql:///kettles";
      maxConnections = 40000;
      openFirewall = true;
      monitoring = {
        enable = true;
        hostname = "0.0.0.0";
        locust = "locust:8089";
      };
    };
    networking.firewall.allowedTCPPorts = [
      3000
      9090
    ];
  };

  locust = {
    imports = [
      ./locust.nix
      both
    ];
    services.locust = {
      enable = true;
      host = "http://app:8080";
      behaviour = "as-2017";
      openFirewall = true;
    };
  };
}
