job "web" {
  group "app" {
    task "server" {
      driver = "exec"
      kill_signal = "SIGSTOPP"
    }
  }
}
