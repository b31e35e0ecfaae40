job "web" {
  group "api" {
    network {
      mode = "brigde"
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
