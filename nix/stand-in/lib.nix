# As much of nixpkgs' lib as the modules here use, so that they can be evaluated where there is no
# nixpkgs: options with defaults and types, and mkIf. Not a module system: one module, no merging.
let
  type = name: check: { inherit name check; };
  inherit (builtins)
    all
    attrNames
    concatMap
    elemAt
    filter
    genList
    isAttrs
    isBool
    isInt
    isList
    isString
    length
    listToAttrs
    ;
  isOption = value: isAttrs value && (value._type or "") == "option";
  isIf = value: isAttrs value && (value._type or "") == "if";

  lib = {
    mkOption = option: option // { _type = "option"; };
    mkIf = condition: content: {
      _type = "if";
      inherit condition content;
    };
    optionalAttrs = condition: attrs: if condition then attrs else { };
    imap0 = f: list: genList (number: f number (elemAt list number)) (length list);
    types = {
      attrs = type "attributes" isAttrs;
      bool = type "boolean" isBool;
      package = type "package" (value: isAttrs value || isString value);
      port = type "port" (value: isInt value && value >= 0 && value <= 65535);
      str = type "text" isString;
      listOf = element: type "list of ${element.name}" (value: isList value && all element.check value);
      nullOr = element: type "null or ${element.name}" (value: value == null || element.check value);
    };
  };

  # The values of options: what is given, or the default. What is given and is no option is refused.
  values =
    path: options: given:
    let
      unknown = filter (name: !(options ? ${name})) (attrNames given);
      value =
        name:
        let
          option = options.${name};
          place = "${path}.${name}";
        in
        if isOption option then
          let
            chosen = given.${name} or option.default;
          in
          if option.type.check chosen then chosen else throw "${place} is no ${option.type.name}"
        else
          values place option (given.${name} or { });
    in
    if unknown != [ ] then
      throw "there is no ${path}.${toString unknown}"
    else
      builtins.mapAttrs (name: _: value name) options;

  # What a module sets, without what a condition leaves out.
  resolve =
    value:
    if isIf value then
      (if value.condition then resolve value.content else null)
    else if isAttrs value then
      let
        kept = filter (name: resolve value.${name} != null) (attrNames value);
      in
      listToAttrs (map (name: { inherit name; value = resolve value.${name}; }) kept)
    else
      value;

  # TOML as far as it is JSON with other brackets: tables are written inline.
  toml =
    value:
    if isAttrs value then
      "{ ${join ", " (map (name: "${builtins.toJSON name} = ${toml value.${name}}") (attrNames value))} }"
    else if isList value then
      "[${join ", " (map toml value)}]"
    else
      builtins.toJSON value;
  join = builtins.concatStringsSep;

  pkgs = {
    samovar = "/stand-in/samovar";
    coreutils = "/stand-in/coreutils";
    formats.toml = _: {
      generate =
        name: settings:
        builtins.toFile name (
          join "" (map (key: "${builtins.toJSON key} = ${toml settings.${key}}\n") (attrNames settings))
        );
    };
  };

  # A unit as NixOS writes it: a line for each value, a list as several.
  lines =
    section:
    concatMap (
      name:
      let
        value = section.${name};
        text =
          one:
          if one == true then
            "true"
          else if one == false then
            "false"
          else
            toString one;
      in
      map (one: "${name}=${text one}\n") (if isList value then value else [ value ])
    ) (attrNames section);
  unit =
    one: section: content:
    join "" (
      [
        "[Unit]\n"
        "Description=${one.description}\n"
      ]
      ++ map (other: "Requires=${other}\n") (one.requires or [ ])
      ++ map (other: "After=${other}\n") (one.after or [ ])
      ++ [ "[${section}]\n" ]
      ++ lines content
      ++ [ "[Install]\n" ]
      ++ map (other: "WantedBy=${other}\n") one.wantedBy
    );
in
{
  # What `module` makes of `given`, as JSON; units as text.
  evaluate =
    { module, given }:
    let
      evaluated = import module {
        inherit lib pkgs;
        config.services.samovar = values "services.samovar" evaluated.options.services.samovar given;
      };
      config = resolve evaluated.config;
      service = config.systemd.services.samovar;
      socket = config.systemd.sockets.samovar;
    in
    if config == null then
      null
    else if config ? systemd then
      {
        service = unit service "Service" service.serviceConfig;
        socket = unit socket "Socket" socket.socketConfig;
        ports = config.networking.firewall.allowedTCPPorts or [ ];
        nginx = config.services.nginx or null;
      }
    else
      config;
}
