# Needs Rust 1.95 or newer. The tests are not run in the build, because they need a store, root, and the
# loopback network.
{
  lib,
  rustPlatform,
  installShellFiles,
}:

rustPlatform.buildRustPackage {
  pname = "samovar";
  version = "0.1.0";

  src = lib.cleanSource ../.;
  cargoLock.lockFile = ../Cargo.lock;
  cargoBuildFlags = [
    "--package=nix-serve"
    "--package=samovar"
  ];
  doCheck = false;

  nativeBuildInputs = [ installShellFiles ];
  postInstall = ''
    mkdir man
    $out/bin/samovar man man
    installManPage man/* contrib/nix-serve/nix-serve.1
    for shell in bash fish zsh; do
      $out/bin/samovar completions $shell > samovar.$shell
    done
    installShellCompletion samovar.{bash,fish,zsh} contrib/nix-serve/nix-serve.{bash,fish,zsh}
  '';

  meta = {
    description = "Nix binary cache server";
    license = lib.licenses.asl20;
    # The program that `services.nix-serve` starts.
    mainProgram = "nix-serve";
    platforms = lib.platforms.linux;
  };
}
