locals {
  ports = { http = 80 }
}
job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
      env {
        X = local.ports.https
      }
    }
  }
}
