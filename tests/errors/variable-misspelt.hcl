variable "region" {
  default = "eu"
}
job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
      env {
        X = var.regoin
      }
    }
  }
}
