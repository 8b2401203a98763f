# NixOS test of both machines of network.nix: a kettle's measurement is counted, and Prometheus scrapes it.
# Never run, for lack of nixpkgs and virtual machines: only its syntax was checked.
#
#   nix build .#checks.x86_64-linux.kettles
{ pkgs, overlay }:

pkgs.testers.runNixOSTest {
  name = "kettles";
  node.pkgsReadOnly = false;
  defaults.nixpkgs.overlays = [ overlay ];
  nodes = import ../network.nix;
  testScript = ''
    import json

    start_all()
    app.wait_for_unit("kettles.service")
    app.wait_for_open_port(8080)
    locust.wait_for_unit("locust.service")
    locust.wait_for_open_port(8089)

    told = locust.succeed("curl -sf -d '{\"username\":\"tea\"}' http://app:8080/login")
    name = json.loads(told)["username"]
    time = locust.succeed("date -u +%Y-%m-%dT%H:%M:%SZ").strip()
    measurement = {
        "time": time, "charge_now": 1, "charge_full": 100, "charge_rate": 0.5,
        "ambient_temp": 20.5, "water_temp": 90.5, "water_level": 300,
    }
    locust.succeed(
        f"curl -sf -H 'servant-auth-cookie: {name}' -d '{json.dumps(measurement)}'"
        " http://app:8080/measurement"
    )
    counted = json.loads(locust.succeed("curl -sf http://app:8080/statistics"))
    assert counted["statsMeasurementCount"] == 1, counted

    app.wait_for_open_port(9090)
    query = "http://127.0.0.1:9090/api/v1/query?query=app_measurements_total"
    app.wait_until_succeeds(f"curl -sf '{query}' | grep -q '\"1\"'", timeout=60)
    app.wait_for_open_port(3000)
    app.systemctl("restart kettles.service")
    app.wait_for_open_port(8080)
    again = json.loads(app.succeed("curl -sf http://127.0.0.1:8080/statistics"))
    assert again["statsMeasurementCount"] == 1, again
  '';
}
