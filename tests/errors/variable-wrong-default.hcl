variable "n" {
  type    = number
  default = "many"
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
