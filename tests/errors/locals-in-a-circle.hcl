locals {
  a = local.b
  b = local.a
}
job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
      env {
        X = local.a
      }
    }
  }
}
