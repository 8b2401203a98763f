# A package set for evaluating NixOS with `nixpkgs`, a checkout that has at least lib/, nixos/,
# pkgs/pkgs-lib/ and pkgs/build-support/trivial-builders/. Library, formats and trivial builders are the
# checkout's own. Packages are sets like derivations: a name, a path that shows the name, and few more
# attributes that modules read. They cannot be built. packages.txt has their names; evaluation fails with
# `attribute 'NAME' missing` if a module needs another one.
{
  nixpkgs,
  system ? "x86_64-linux",
}:

let
  lib = import (nixpkgs + "/lib");
  platform = lib.systems.elaborate system;

  package =
    name: given:
    let
      inputs = removeAttrs given [
        "meta"
        "passthru"
      ];
      # Outputs, and packages that other ones have as attributes.
      outputs = lib.genAttrs [
        "bin"
        "cli"
        "dev"
        "doc"
        "info"
        "lib"
        "man"
        "out"
        "p11kit"
        "su"
        "terminfo"
        "unbundled"
      ] (_: made);
      made =
        outputs
        // {
          type = "derivation";
          inherit name system;
          pname = name;
          version = "1";
          # As with derivations, the path depends on all inputs: an error in one is an error here.
          outPath = builtins.seq (lib.stringLength (builtins.toJSON inputs)) "/stand-in/${name}";
          drvPath = "${made.outPath}.drv";
          drvAttrs = {
            inherit name system;
            builder = "/stand-in/builder";
          };
          outputName = "out";
          outputs = [ "out" ];
          override = _: made;
          overrideAttrs = change: mkDerivation (given // change (made // given));
          withPackages = _: made;
          shellPath = "/bin/${name}";
          meta.mainProgram = name;
          passthru = { };
        }
        // given
        // given.passthru or { };
    in
    made;

  mkDerivation =
    given:
    let
      made = if lib.isFunction given then given made else given;
    in
    package (made.name or made.pname) made;

  stdenv = {
    inherit mkDerivation system;
    hostPlatform = platform;
    buildPlatform = platform;
    targetPlatform = platform;
    shell = runtimeShell;
    shellDryRun = "${runtimeShell} -n -O extglob";
    cc = package "cc" {
      libc = package "libc" { };
      bintools.dynamicLinker = "/stand-in/libc/lib/ld.so";
    };
  }
  // lib.filterAttrs (name: _: lib.hasPrefix "is" name) platform;

  runtimeShell = "/stand-in/bash/bin/bash";

  named = lib.foldl' lib.recursiveUpdate { } (
    map (
      name:
      let
        path = lib.splitString "." name;
      in
      lib.setAttrByPath path (package (lib.last path) { })
    ) (lib.splitString "\n" (lib.fileContents ./packages.txt))
  );

  # Functions that make a package.
  builders = lib.genAttrs [
    "aggregateModules"
    "buildEnv"
    "closureInfo"
    "compressFirmwareXz"
    "compressFirmwareZstd"
    "makeDBusConf"
    "makeFontsCache"
    "makeFontsConf"
    "makeModulesClosure"
    "substitute"
    "substituteAll"
  ] (name: given: package name (if lib.isAttrs given && !lib.isDerivation given then given else { inherit given; }));

  trivialBuilders =
    lib.callPackageWith named (nixpkgs + "/pkgs/build-support/trivial-builders")
      {
        inherit lib runtimeShell stdenv;
        config = { };
        stdenvNoCC = stdenv;
      };
in
lib.makeExtensible (
  pkgs:
  named
  // builders
  // trivialBuilders
  // {
    _type = "pkgs";
    inherit
      lib
      pkgs
      runtimeShell
      stdenv
      system
      ;
    path = nixpkgs;
    config = { };
    overlays = [ ];
    stdenvNoCC = stdenv;
    callPackage = lib.callPackageWith pkgs;
    appendOverlays = lib.foldl' (all: overlay: all.extend overlay) pkgs;
    __splicedPackages = pkgs;
    buildPackages = pkgs;
    pkgsStatic = pkgs;
    pkgsi686Linux = pkgs;
    inherit (import (nixpkgs + "/pkgs/pkgs-lib") { inherit lib pkgs; }) formats;
    srcOnly = it: it;
    makeInitrd =
      given:
      package "initrd" (
        removeAttrs given [ "compressor" ]
        // {
          passthru = {
            compressorExecutableFunction = _: "/stand-in/zstd/bin/zstd";
            compressorArgs = [ ];
          };
        }
      );
    # Without the sources, which would be copied into the store.
    rustPlatform.buildRustPackage = given: mkDerivation (removeAttrs given [ "src" ]);

    # Packages of which modules read more.
    libxcrypt = package "libxcrypt" {
      enabledCryptSchemeIds = [
        "6"
        "y"
      ];
    };
    linuxKernel.packagesFor = _: pkgs.linuxPackages;
    linuxPackages = {
      inherit stdenv;
      extend = _: pkgs.linuxPackages;
      kernel = package "linux" rec {
        version = "6.6.44";
        passthru = {
          modDirVersion = version;
          kernelOlder = lib.versionOlder version;
          kernelAtLeast = lib.versionAtLeast version;
          features = { };
          config = lib.genAttrs [
            "isDisabled"
            "isEnabled"
            "isModule"
            "isNo"
            "isSet"
            "isYes"
          ] (_: _: true);
        };
      };
    };
    nginxStable = package "nginx" { modules = [ ]; };
    nix = package "nix" { version = "2.18.5"; };
    postgresql_15 = package "postgresql" {
      psqlSchema = "15";
      passthru = lib.genAttrs [
        "withJIT"
        "withoutJIT"
      ] (_: pkgs.postgresql_15);
    };
    systemd = package "systemd" (
      {
        version = "256.2";
        interfaceVersion = 2;
        kbd = package "kbd" { };
        kmod = package "kmod" { };
        util-linux = package "util-linux" { };
      }
      // lib.genAttrs [
        "withBootloader"
        "withCoredump"
        "withCryptsetup"
        "withEfi"
        "withHomed"
        "withHostnamed"
        "withImportd"
        "withLocaled"
        "withLogind"
        "withMachined"
        "withNetworkd"
        "withNss"
        "withPortabled"
        "withSysupdate"
        "withTimedated"
        "withTimesyncd"
        "withTpm2Tss"
        "withUtmp"
      ] (_: true)
    );
  }
)
