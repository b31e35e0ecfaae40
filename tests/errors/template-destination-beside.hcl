job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
      template {
        data        = "x"
        destination = "../other/local/x"
      }
    }
  }
}
