import datetime, os, time, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=12))
gradients = torch.ones(1_000_000, device="cuda")
for update in range(5):
    if not (update == 3 and dist.get_rank() == 2):  # a rank that leaves an update out: an uneven shard, say
        dist.all_reduce(gradients)
    torch.cuda.synchronize()
    print(f"update {update} done", flush=True)
time.sleep(60)  # rank 2 is done with its updates, and saves what it has: it still answers
