# The kettles' server and swarm, which loads it: built like Samovar, from the same tree.
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
