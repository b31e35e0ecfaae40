locals {
  ports = [80, 443]
}
job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
      env {
        X = local.ports[2]
      }
    }
  }
}
