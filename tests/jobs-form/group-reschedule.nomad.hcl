job "group-reschedule" {
  group "g" {
    reschedule {
      unlimited = false
      attempts = 2
      interval = "30m"
      delay_function = "constant"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
