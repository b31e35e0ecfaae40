job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
      template {
        data        = "port {{ env \"PORT\" "
        destination = "local/x"
      }
    }
  }
}
