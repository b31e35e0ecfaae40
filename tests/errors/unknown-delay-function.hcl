job "web" {
  group "api" {
    reschedule {
      delay_function = "linear"
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
