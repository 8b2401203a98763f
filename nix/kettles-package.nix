# The kettles server and its load generator `swarm`, built like Samovar from the same sources.
{ samovar }:

samovar.overrideAttrs (old: {
  pname = "kettles";
  cargoBuildFlags = [
    "--package=kettles"
    "--package=swarm"
  ];
  postInstall = "";
  meta = old.meta // {
    description = "Twenty thousand kettles that report every half minute, and what loads their server";
    mainProgram = "kettles";
  };
})
