job "task-resources" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      resources {
        cpu = 200
        memory = 64
        memory_max = 128
        disk = 10
        iops = 5
        secrets = 3
      }
    }
  }
}
