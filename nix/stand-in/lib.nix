# As much of nixpkgs' lib as the modules here use, so that they can be evaluated where there is no
# nixpkgs: imports, options with defaults and types, mkIf and mkMerge, and definitions that are merged:
# of options that are declared here by their type; of all others, which are NixOS's, sets by name and lists
# by concatenation. Whether NixOS has those, nothing here knows.
let
  type = name: check: { inherit name check; };
  inherit (builtins)
    all
    any
    attrNames
    concatMap
    elemAt
    filter
    foldl'
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
    mkMerge = contents: {
      _type = "merge";
      inherit contents;
    };
    optionalAttrs = condition: attrs: if condition then attrs else { };
    optional = condition: value: if condition then [ value ] else [ ];
    optionals = condition: list: if condition then list else [ ];
    genAttrs =
      names: f:
      listToAttrs (
        map (name: {
          inherit name;
          value = f name;
        }) names
      );
    hasPrefix = prefix: text: builtins.substring 0 (builtins.stringLength prefix) text == prefix;
    concatStringsSep = join;
    imap0 = f: list: genList (number: f number (elemAt list number)) (length list);
    types = {
      attrs = type "attributes" isAttrs;
      bool = type "boolean" isBool;
      package = type "package" (value: isAttrs value || isString value);
      port = type "port" (value: isInt value && value >= 0 && value <= 65535);
      str = type "text" isString;
      ints.positive = type "number above 0" (value: isInt value && value > 0);
      ints.unsigned = type "number" (value: isInt value && value >= 0);
      enum = values: type "value of those that may be" (value: builtins.elem value values);
      listOf = element: type "list of ${element.name}" (value: isList value && all element.check value);
      nullOr = element: type "null or ${element.name}" (value: value == null || element.check value);
    };
  };

  isPlain = value: isAttrs value && !(value ? _type);

  # A module and all that it imports, as functions' results.
  load =
    args: module:
    let
      value = if isAttrs module then module else import module;
      made = if builtins.isFunction value then value args else value;
    in
    concatMap (load args) (made.imports or [ ]) ++ [ made ];
  definitionsOf =
    module:
    module.config or (removeAttrs module [
      "imports"
      "options"
    ]);

  # Option declarations of all modules.
  declare = foldl' (
    one: other:
    one
    // builtins.mapAttrs (
      name: value: if isPlain value && one ? ${name} then declare one.${name} [ value ] else value
    ) other
  );

  # One definition, with conditions that stood before it, without asking whether they hold: the names of
  # what is set must be known before its values are.
  flatten =
    holds: value:
    if isIf value then
      flatten (holds && value.condition) value.content
    else if isAttrs value && (value._type or "") == "merge" then
      concatMap (flatten holds) value.contents
    else
      [ { inherit holds value; } ];

  absent = {
    _type = "absent";
  };
  merge =
    place: options: definitions:
    let
      values = map (it: it.value) (filter (it: it.holds) definitions);
      names = builtins.attrNames (foldl' (all: it: all // it.value) options definitions);
      below =
        name:
        merge (if place == "" then name else "${place}.${name}") (options.${name} or { }) (
          concatMap (it: if it.value ? ${name} then flatten it.holds it.value.${name} else [ ]) definitions
        );
    in
    if isOption options then
      let
        value = if values != [ ] then combine place values else options.default or (throw "${place} is needed");
      in
      if options.type.check value then value else throw "${place} is no ${options.type.name}"
    else if (definitions == [ ] && options != { }) || any (it: isPlain it.value) definitions then
      if isDeclared options && unknown options definitions != [ ] then
        throw "there is no ${place}.${toString (unknown options definitions)}"
      else
        listToAttrs (
          map (name: {
            inherit name;
            value = below name;
          }) names
        )
    else if values == [ ] then
      absent
    else
      combine place values;
  # A set of options, of which no other module of NixOS has any.
  isDeclared = options: any (name: isOption options.${name}) (attrNames options);
  unknown =
    options: definitions:
    filter (name: !(options ? ${name})) (concatMap (it: attrNames it.value) definitions);
  combine =
    place: values:
    if all isList values then
      builtins.concatLists values
    else if all isAttrs values then
      foldl' (one: other: one // other) { } values
    else if all (value: value == builtins.head values) values then
      builtins.head values
    else
      throw "${place} is set twice";

  # What was set, without what a condition leaves out.
  prune =
    value:
    if isAttrs value && (value._type or "") == "absent" then
      null
    else if isAttrs value then
      let
        made = map (name: {
          inherit name;
          value = prune value.${name};
        }) (attrNames value);
      in
      listToAttrs (filter (it: it.value != null && it.value != { }) made)
    else
      value;

  # The configuration that modules make together.
  system =
    modules:
    let
      loaded = concatMap (load { inherit lib pkgs config; }) modules;
      options = declare { } (map (module: module.options or { }) loaded);
      config = merge "" options (concatMap (module: flatten true (definitionsOf module)) loaded);
    in
    prune config;

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
    kettles = "/stand-in/kettles";
    locust = "/stand-in/locust";
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
  # What modules make together, units as text, by their names.
  evaluateAll =
    modules:
    let
      made = system modules;
      named =
        kind: section: content:
        builtins.mapAttrs (_: one: unit one section one.${content}) (made.systemd.${kind} or { });
    in
    made
    // {
      units = {
        services = named "services" "Service" "serviceConfig";
        sockets = named "sockets" "Socket" "socketConfig";
      };
    };

  # What `module` makes of `given` alone.
  evaluate =
    { module, given }:
    let
      made = evaluateAll [
        module
        { config.services.samovar = given; }
      ];
      failed = filter (it: !it.assertion) (made.assertions or [ ]);
    in
    if failed != [ ] then
      throw (elemAt failed 0).message
    else if made ? systemd then
      {
        service = made.units.services.samovar;
        socket = made.units.sockets.samovar;
        ports = made.networking.firewall.allowedTCPPorts or [ ];
        nginx = made.services.nginx or null;
      }
    else if made ? launchd then
      made
    else
      null;
in
{
  inherit evaluate evaluateAll lib;
}
