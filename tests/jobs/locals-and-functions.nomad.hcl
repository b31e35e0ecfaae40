# Locals and functions make a configuration file's values.
# prints: API-EU 10.8.0.5 {"debug":false,"workers":4}

locals {
  name    = upper(format("%s-%s", "api", "eu"))
  address = cidrhost("10.8.0.0/24", 5)
  config = {
    workers = max(2, 4, 1)
    debug   = false
  }
}

job "functions" {
  type = "batch"

  group "functions" {
    task "show" {
      driver = "exec"

      config {
        command = "/bin/echo"
        args    = [local.name, local.address, jsonencode(local.config)]
      }
    }
  }
}
