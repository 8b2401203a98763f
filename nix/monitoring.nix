# services.kettles.monitoring: Prometheus with the rig's rules, exporters, and Grafana with the rig's
# dashboards, for the kettles server on this machine. Evaluated as nix/README.md describes, also in a whole
# NixOS system; promtool checks the resulting Prometheus configuration. Never run on NixOS.
{
  config,
  lib,
  ...
}:

let
  cfg = config.services.kettles.monitoring;
  kettles = config.services.kettles;
  inherit (lib)
    hasPrefix
    mkIf
    mkOption
    optional
    types
    ;
  hasPostgresql = hasPrefix "postgresql:///" kettles.database;
  rules = ../rig/prometheus;
  jobOf = name: targets: {
    job_name = name;
    static_configs = [ { inherit targets; } ];
  };
  job = name: target: jobOf name [ target ];
  # If there are several processes, each is scraped separately.
  ports =
    if kettles.processes > 1 then
      builtins.genList (index: kettles.ownPort + index) kettles.processes
    else
      [ kettles.port ];
  exporter = {
    enable = true;
    listenAddress = "127.0.0.1";
  };
in
{
  options.services.kettles.monitoring = {
    enable = mkOption {
      type = types.bool;
      default = false;
      description = "Whether to watch the kettles' server, and this machine.";
    };

    locust = mkOption {
      type = types.nullOr types.str;
      default = null;
      description = "Where Locust answers, such as `locust:8089`; null if there is none.";
    };

    hostname = mkOption {
      type = types.str;
      default = "127.0.0.1";
      description = "Address on which Prometheus (9090) and Grafana (3000) listen.";
    };
  };

  config = mkIf cfg.enable {
    services.prometheus = {
      enable = true;
      listenAddress = cfg.hostname;
      globalConfig = {
        scrape_interval = "10s";
        evaluation_interval = "10s";
      };
      ruleFiles = map (name: "${rules}/${name}") [
        "use.yml"
        "kettles.yml"
      ];
      scrapeConfigs = [
        (jobOf "kettles" (map (port: "127.0.0.1:${toString port}") ports))
        (job "node" "127.0.0.1:9100")
        (job "process" "127.0.0.1:9256")
        (job "prometheus" "127.0.0.1:9090")
      ]
      ++ optional hasPostgresql (job "postgres" "127.0.0.1:9187")
      ++ optional (cfg.locust != null) (job "locust" cfg.locust);
      exporters = {
        # Collectors of the 2017 study that are not enabled by default, and pressure.
        node = exporter // {
          enabledCollectors = [
            "interrupts"
            "ksmd"
            "logind"
            "pressure"
            "systemd"
          ];
        };
        process = exporter // {
          settings.process_names = [
            {
              comm = [
                "kettles"
                "postgres"
                "prometheus"
                "grafana"
              ];
            }
          ];
        };
        postgres = mkIf hasPostgresql (
          exporter
          // {
            runAsLocalSuperUser = true;
            extraFlags = [ "--extend.query-path=${rules}/postgresql.yml" ];
          }
        );
      };
    };

    services.grafana = {
      enable = true;
      settings = {
        server = {
          http_addr = cfg.hostname;
          http_port = 3000;
        };
        "auth.anonymous".enabled = true;
      };
      provision = {
        enable = true;
        datasources.settings.datasources = [
          {
            name = "Prometheus";
            type = "prometheus";
            url = "http://127.0.0.1:9090";
            isDefault = true;
          }
        ];
        dashboards.settings.providers = [
          {
            name = "rig";
            options.path = "${../rig/grafana/dashboards}";
          }
        ];
      };
    };
  };
}
