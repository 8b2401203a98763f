# What a unit of a server that needs nothing of its machine is not let near. As in contrib/systemd, which
# says why.
{
  DynamicUser = true;
  LimitCORE = 0;
  CapabilityBoundingSet = "";
  AmbientCapabilities = "";
  NoNewPrivileges = true;
  UMask = "0077";
  ProtectSystem = "strict";
  ProtectHome = true;
  PrivateTmp = true;
  PrivateDevices = true;
  PrivateUsers = true;
  PrivateMounts = true;
  ProtectClock = true;
  ProtectControlGroups = true;
  ProtectHostname = true;
  ProtectKernelLogs = true;
  ProtectKernelModules = true;
  ProtectKernelTunables = true;
  ProtectProc = "invisible";
  ProcSubset = "pid";
  RemoveIPC = true;
  RestrictAddressFamilies = [
    "AF_UNIX"
    "AF_INET"
    "AF_INET6"
  ];
  RestrictNamespaces = true;
  RestrictRealtime = true;
  RestrictSUIDSGID = true;
  LockPersonality = true;
  MemoryDenyWriteExecute = true;
  KeyringMode = "private";
  SystemCallArchitectures = "native";
  SystemCallFilter = [
    "@system-service"
    "~@privileged @resources"
    "prlimit64 setrlimit setpriority"
  ];
  SystemCallErrorNumber = "EPERM";
}
