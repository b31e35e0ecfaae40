job "task-vault" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      vault {
        policies = ["a"]
        role = "r"
        namespace = "n"
        cluster = "default"
        env = false
        disable_file = true
        change_mode = "signal"
        change_signal = "SIGUSR1"
        allow_token_expiration = true
      }
    }
  }
}
