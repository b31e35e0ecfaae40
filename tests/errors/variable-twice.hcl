variable "n" {
  default = 1
}
variable "n" {
  default = 2
}
job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
