# The part of nixpkgs' lib that these modules use, so that they can be evaluated without nixpkgs: imports,
# options with defaults and types, mkIf, mkMerge, and the merging of definitions. Options that these
# modules declare are merged according to their types. All other options belong to NixOS: sets are merged by
# name and lists by concatenation, and whether NixOS has such an option is not checked.
let
  type = name: check: { inherit name check; };
  inherit (builtins)
    all
    any
    attrNames
    attrValues
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
    mkEnableOption =
      what:
      lib.mkOption {
        type = lib.types.bool;
        default = false;
        description = "Whether to enable ${what}.";
      };
    mkPackageOption =
      pkgs: name: _:
      lib.mkOption {
        type = lib.types.package;
        default = pkgs.${name};
      };
    mkDefault = content: {
      _type = "default";
      inherit content;
    };
    mkMerge = contents: {
      _type = "merge";
      inherit contents;
    };
    optionalAttrs = condition: attrs: if condition then attrs else { };
    cleanSource = source: source;
    getExe = package: "${package}/bin/${package.meta.mainProgram}";
    licenses.asl20 = "Apache-2.0";
    platforms.linux = [ "x86_64-linux" ];
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
    inherit listToAttrs;
    literalMD = text: text;
    mapAttrsToList = f: attrs: map (name: f name attrs.${name}) (attrNames attrs);
    optionalString = condition: text: if condition then text else "";
    imap0 = f: list: genList (number: f number (elemAt list number)) (length list);
    types = {
      attrs = type "attributes" isAttrs;
      attrsOf =
        element: type "attributes of ${element.name}" (value: isAttrs value && all element.check (attrValues value));
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

  # Evaluates a module and its imports, recursively; returns a list of attribute sets.
  load =
    args: module:
    let
      value = if isAttrs module || builtins.isFunction module then module else import module;
      made = if builtins.isFunction value then value args else value;
    in
    concatMap (load args) (made.imports or [ ]) ++ [ made ];
  definitionsOf =
    module:
    module.config or (removeAttrs module [
      "imports"
      "options"
    ]);

  # The option declarations of all modules.
  declare = foldl' (
    one: other:
    one
    // builtins.mapAttrs (
      name: value: if isPlain value && one ? ${name} then declare one.${name} [ value ] else value
    ) other
  );

  # Pushes mkIf and mkMerge down into a definition without evaluating the conditions: the names of the
  # defined options must be known before the values.
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
      else if names == [ ] && values == [ ] then
        absent
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
  # A set of options that only these modules declare.
  isDeclared = options: any (name: isOption options.${name}) (attrNames options);
  unknown =
    options: definitions:
    filter (name: !(options ? ${name})) (concatMap (it: attrNames it.value) definitions);
  # Definitions with mkDefault apply only without others.
  isDefault = value: isAttrs value && (value._type or "") == "default";
  prioritized =
    values:
    if all isDefault values then map (it: it.content) values else filter (it: !isDefault it) values;
  combine =
    place: given:
    let
      values = prioritized given;
      named = name: map (it: it.${name}) (filter (it: it ? ${name}) values);
    in
    if all isList values then
      builtins.concatLists values
    else if all isPlain values then
      builtins.mapAttrs (name: _: combine "${place}.${name}" (named name)) (
        foldl' (one: other: one // other) { } values
      )
    else if all (value: value == builtins.head values) values then
      builtins.head values
    else
      throw "${place} is set twice";

  # The defined values, without those whose condition is false.
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
      # Removes sets that have only values without a definition; empty sets stay.
      listToAttrs (filter (it: it.value != null && (it.value != { } || value.${it.name} == { })) made)
    else
      value;

  # The configuration that results from all modules.
  system =
    modules:
    let
      loaded = concatMap (load {
        inherit lib config;
        pkgs = packages (config.nixpkgs.overlays or [ ]);
      }) modules;
      options = declare { } (map (module: module.options or { }) loaded);
      config = merge "" options (concatMap (module: flatten true (definitionsOf module)) loaded);
    in
    prune config;

  # Renders TOML, with all tables inline, so that only brackets and separators differ from JSON.
  toml =
    value:
    if isAttrs value then
      "{ ${join ", " (map (name: "${builtins.toJSON name} = ${toml value.${name}}") (attrNames value))} }"
    else if isList value then
      "[${join ", " (map toml value)}]"
    else
      builtins.toJSON value;
  join = builtins.concatStringsSep;

  # The package set with these overlays, in place of `import <nixpkgs> { overlays = …; }`.
  packages =
    overlays:
    let
      final = foldl' (all: overlay: all // overlay final all) base overlays;
      base = pkgs // {
        inherit lib;
        callPackage =
          file: given:
          let
            make = import file;
          in
          make (builtins.intersectAttrs (builtins.functionArgs make) final // given);
      };
    in
    final;

  package = given: {
    inherit (given) pname meta;
    type = "derivation";
    # A value that is not merged.
    _type = "package";
    outPath = "/stand-in/${given.pname}";
    overrideAttrs = change: package (given // change given);
  };

  pkgs = {
    nix-serve = package {
      pname = "perl-nix-serve";
      meta.mainProgram = "nix-serve";
    };
    rustPlatform.buildRustPackage = package;
    installShellFiles = "/stand-in/install-shell-files";
    samovar = "/stand-in/samovar";
    kettles = "/stand-in/kettles";
    locust = "/stand-in/locust";
    coreutils = "/stand-in/coreutils";
    formats.toml = _: {
      type = lib.types.attrs // {
        name = "TOML value";
      };
      generate =
        name: settings:
        builtins.toFile name (
          join "" (map (key: "${builtins.toJSON key} = ${toml settings.${key}}\n") (attrNames settings))
        );
    };
  };

  # Renders a unit as NixOS does: one line for each value, several lines for a list.
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
      ++ map (other: "ListenStream=${other}\n") (one.listenStreams or [ ])
      ++ lines content
      ++ [ "[Install]\n" ]
      ++ map (other: "WantedBy=${other}\n") one.wantedBy
    );
  # The resulting configuration of all modules, with units rendered as text, by name.
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

  # The configuration that `module` alone makes of the definitions in `given`.
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
  inherit
    evaluate
    evaluateAll
    lib
    packages
    pkgs
    system
    ;
}
